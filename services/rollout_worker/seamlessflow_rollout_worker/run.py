"""A worker in one run: its engine, the weights it follows, the generations it holds, the consumers it pulls from.

join ─▶ prepare (wait for weights; no device) ─▶ start (device held) ─▶ pull ⇄ stop, freeze or hand back ─▶ leave
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import Lease
from seamlessflow.runtime import Context

from .config import WorkerSettings
from .engines.base import Engine, EngineError, KnowsCache
from .engines.factory import BuildEngine
from .engines.two_version_engine import TwoVersions
from .generations.context_budget import Contexts
from .generations.delivery_handler import Sampler
from .generations.generation_state import Pace
from .generations.pulls import Intake, Pulls
from .generations.stop_detection import Texts
from .weights.local_versions import Fetched, LocalVersions
from .weights.pinned_versions import Keeping
from .weights.store_reader import first_weights
from .weights.update_deadlines import DEADLINE_SECONDS, Step
from .weights.updater import WeightsFollower, publish_loaded

# What a worker has for one run once its engine has started: the parts, and how they are wired to each other.


@dataclass(frozen=True, slots=True)
class Assembly:
    """``keeping`` None: its episodes keep no weights version."""

    sampler: Sampler
    follower: WeightsFollower
    intake: Intake
    keeping: Keeping | None


def contexts_of(engine: Engine, num_slots: int) -> Contexts:
    """Room for the episodes of one run: limited by the engine's cache, where it knows that."""
    cache_tokens = engine.cache_tokens if isinstance(engine, KnowsCache) else None
    return Contexts(num_slots, cache_tokens=cache_tokens, longest_context=engine.max_context_tokens)


def engine_for(
    build: BuildEngine, config: RunConfig, settings: WorkerSettings, folder: Path, on_versions: Callable[[], None]
) -> Engine:
    """The run's engine, or two of them as one, which tells when it has other versions."""
    one = partial(build, config, settings, folder)
    return TwoVersions((one(), one()), on_versions) if config.version_slots else one()


def assembled(
    engine: Engine,
    context: Context,
    settings: WorkerSettings,
    run: str,
    config: RunConfig,
    versions: LocalVersions,
    fetched: Fetched,
    *,
    pace: Pace,
    deadlines: Mapping[Step, float],
    on_engine_death: Callable[[EngineError], None],
    on_versions: Callable[[], None],
) -> Assembly:
    """Around an engine that has started with ``fetched``. on_versions: other tags are to be pulled than before."""
    keeping: Keeping | None = None
    # However much room the engine says it has: what it held beyond its share, others would wait for.
    num_slots = min(engine.num_slots, config.fleet.slots)
    contexts = contexts_of(engine, num_slots)
    sampler = Sampler(
        engine,
        context.bus,
        context.journal,
        context.handlers,
        Texts(versions.load_tokenizer),
        worker=settings.instance,
        pace=pace,
        on_engine_death=on_engine_death,
        on_weights_wanted=lambda: follower.poke(),
        keeping=lambda: keeping,
        contexts=contexts,
        owned=lambda tag: intake.owned.get(tag, ()),
        has_choice=config.fleet.buckets > 1,
    )
    follower = WeightsFollower(
        engine,
        context.bus,
        context.journal,
        versions,
        run=run,
        worker=settings.instance,
        node=settings.node,
        num_held=lambda: sampler.num_held,
        on_thaw=lambda: sampler.activity.note(0),
        fetched=fetched,
        deadlines=deadlines,
        pauses=not isinstance(engine, TwoVersions),
    )
    if isinstance(engine, TwoVersions):
        keeping = Keeping(
            engine,
            context.bus,
            context.journal,
            versions,
            follower,
            run=run,
            worker=settings.instance,
            version_slots=config.version_slots,
            deadlines=deadlines,
            on_change=on_versions,
        )
    intake = Intake(Pulls(context.bus, run, sampler.handle, num_slots, contexts), config, keeping)
    return Assembly(sampler, follower, intake, keeping)


log = structlog.get_logger()


class Tenure:
    """Everything of one run. ``on_engine_death`` is called when the engine fails; the process should then end."""

    def __init__(
        self,
        context: Context,
        settings: WorkerSettings,
        run: str,
        config: RunConfig,
        *,
        build: BuildEngine,
        on_state: Callable[[str], None],
        on_engine_death: Callable[[EngineError], None],
        pace: Pace,
    ) -> None:
        self.run, self.config = run, config
        self.engine: Engine | None = None
        self.sampler: Sampler | None = None
        self._context, self._settings, self._build, self._pace = context, settings, build, pace
        self._on_engine_death = on_engine_death
        self._deadlines = {**DEADLINE_SECONDS, Step.FETCH: settings.fetch_seconds}
        root = Path(settings.work_dir) / "rollout-worker" / settings.node / run
        self._versions = LocalVersions(context.store, run, root)
        self._versions.clear()
        self._preparing = asyncio.create_task(
            first_weights(context.bus, self._versions, run, on_state, worker=settings.instance)
        )
        self._follower: WeightsFollower | None = None
        self._following: asyncio.Task[None] | None = None
        self._bringing: asyncio.Task[None] | None = None
        """What is to be kept, where episodes keep their version."""
        self._intake: Intake | None = None
        self._keeping: Keeping | None = None
        """Where episodes keep their weights version."""
        self._lease: Lease | None = None
        """The newest that was heeded."""

    @property
    def num_held(self) -> int:
        return 0 if self.sampler is None else self.sampler.num_held

    @property
    def is_frozen(self) -> bool:
        return self._follower is not None and self._follower.is_frozen

    async def prepare(self) -> None:
        """Wait until there are weights to start from. Cancelling stops the wait, not the preparation."""
        await asyncio.shield(self._preparing)

    async def start(self) -> None:
        """Sample with the newest weights; the device must be ours, ``prepare`` done. Thaws an engine that was frozen."""
        if self._follower is None:
            await self._start_engine(self._preparing.result())
        elif self._follower.is_frozen:
            await self._follower.thaw()
        assert self.sampler is not None
        self.sampler.accept()

    @property
    def num_taken(self) -> Counter[int]:
        """Generations that were pulled, by the priority of the pull."""
        return Counter() if self._intake is None else self._intake.num_taken

    def heed(self, lease: Lease) -> None:
        """What a lease says of the run's weights versions, whatever its role."""
        self._lease = lease
        if self._keeping is not None:
            self._keeping.heed(lease)

    async def pull(self, lease: Lease) -> None:
        """Pull generations as a lease says."""
        assert self._intake is not None
        await self._intake.open(lease)

    async def forget_ended(self) -> None:
        """Make room for new episodes where others have ended. Raises Unavailable."""
        if self.sampler is not None and self._intake is not None:
            await self.sampler.forget_ended()
            self._intake.look()

    def stop_pulling(self) -> None:
        if self._intake is not None:
            self._intake.pause()

    async def freeze(self) -> None:
        """Keep what is held in the engine, sampling nothing; what was sampled is in the journal."""
        if self._follower is not None and self.sampler is not None:
            await self._follower.freeze(sleep=False)
            await self.sampler.flush()

    async def hand_back(self) -> int:
        """Give back what is held and put the engine to sleep; returns how many."""
        if self._follower is None or self.sampler is None:
            return 0
        num_handed_back = await self.sampler.hand_back()
        await self._follower.freeze(sleep=True)
        return num_handed_back

    async def leave(self) -> None:
        """Leave consumers, stop following, let go of the engine. What is held should have been handed back."""
        self._preparing.cancel()
        tasks = [task for task in (self._following, self._bringing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._intake is not None:
            await self._intake.leave()
        if self.engine is not None:
            with suppress(EngineError):
                await self.engine.stop()
        await asyncio.to_thread(self._versions.clear)

    async def _start_engine(self, fetched: Fetched) -> None:
        context, worker, node = self._context, self._settings.instance, self._settings.node
        engine = engine_for(self._build, self.config, self._settings, fetched.folder, self._on_versions)
        try:
            await engine.start(fetched.folder, weights_version=fetched.weights_version)
        except BaseException:
            with suppress(EngineError):
                await engine.stop()
            raise
        parts = assembled(
            engine,
            context,
            self._settings,
            self.run,
            self.config,
            self._versions,
            fetched,
            pace=self._pace,
            deadlines=self._deadlines,
            on_engine_death=self._on_engine_death,
            on_versions=self._on_versions,
        )
        self.engine, self.sampler, self._follower, self._keeping = engine, parts.sampler, parts.follower, parts.keeping
        self._on_versions()
        self._intake = parts.intake
        if self._keeping is not None and self._lease is not None:
            self._keeping.heed(self._lease)
        await publish_loaded(context.journal, self.run, worker, fetched, node=node, pause_seconds=0.0, num_frozen=0)
        self._following = self._go_on(parts.follower.run())
        if self._keeping is not None:
            self._bringing = self._go_on(self._keeping.run())

    def _on_versions(self) -> None:
        """The engine has other versions, or one that is to be kept cannot be had."""
        if isinstance(self.engine, TwoVersions):
            self._context.presence.update(run=self.run, versions=self.engine.held)
        if self._intake is not None:
            self._intake.turn()

    def _go_on(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (wrong := task.exception()) is not None:
            death = wrong if isinstance(wrong, EngineError) else EngineError(f"following the weights failed: {wrong!r}")
            self._on_engine_death(death)
