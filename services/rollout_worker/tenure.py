"""A worker in one run: its engine, the weights it follows, the generations it holds, the consumers it pulls from.

join ─▶ prepare (wait for weights; no device) ─▶ start (device held) ─▶ pull ⇄ stop, freeze or hand back ─▶ leave
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from seamlessflow.contracts import Lease
from seamlessflow.run_config import RunConfig
from seamlessflow.runtime import Context

from .building import BuildEngine
from .config import WorkerSettings
from .engines.base import Engine, EngineError
from .first_weights import first_weights
from .inflight import Pace
from .pulls import Pulls, late_parts, parts_of
from .sampling import Sampler
from .texts import Texts
from .update_steps import DEADLINE_SECONDS, Step
from .versions import Fetched, LocalVersions
from .weights import WeightsFollower, say_loaded

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
        root = Path(settings.work_dir) / "rollout-worker" / settings.node / run
        self._versions = LocalVersions(context.store, run, root)
        self._versions.clear()
        self._preparing = asyncio.create_task(first_weights(context.bus, self._versions, run, on_state))
        self._follower: WeightsFollower | None = None
        self._following: asyncio.Task[None] | None = None
        self._pulls: Pulls | None = None

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
        return Counter() if self._pulls is None else self._pulls.num_taken

    async def pull(self, lease: Lease) -> None:
        """Pull generations of the lease's tags: of its affinity buckets first of all nodes, of the others as a backup."""
        assert self._pulls is not None
        run = self.config.work_tags, self.config.fleet.buckets, self.config.has_classes
        await self._pulls.open(parts_of(lease, *run), late_parts(lease, *run))

    def stop_pulling(self) -> None:
        if self._pulls is not None:
            self._pulls.pause()

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
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._pulls is not None:
            await self._pulls.leave()
        if self.engine is not None:
            with suppress(EngineError):
                await self.engine.stop()
        await asyncio.to_thread(self._versions.clear)

    async def _start_engine(self, fetched: Fetched) -> None:
        context, worker, node = self._context, self._settings.instance, self._settings.node
        engine = self._build(self.config, self._settings, fetched.folder)
        try:
            await engine.start(fetched.folder, weights_version=fetched.weights_version)
        except BaseException:
            with suppress(EngineError):
                await engine.stop()
            raise
        sampler = Sampler(
            engine,
            context.bus,
            context.speaker,
            context.inbox,
            Texts(self._versions.load_tokenizer),
            worker=worker,
            pace=self._pace,
            on_engine_death=self._on_engine_death,
            on_weights_wanted=lambda: follower.poke(),
        )
        follower = WeightsFollower(
            engine,
            context.bus,
            context.speaker,
            self._versions,
            run=self.run,
            worker=worker,
            node=node,
            num_held=lambda: sampler.num_held,
            on_thaw=lambda: sampler.activity.note(0),
            fetched=fetched,
            deadlines={**DEADLINE_SECONDS, Step.FETCH: self._settings.fetch_seconds},
        )
        self.engine, self.sampler, self._follower = engine, sampler, follower
        # However much room the engine says it has: what it held beyond its share, others would wait for.
        num_slots = min(engine.num_slots, self.config.fleet.slots)
        self._pulls = Pulls(context.bus, self.run, sampler.handle, num_slots)
        await say_loaded(context.speaker, self.run, worker, fetched, node=node, pause_seconds=0.0, num_frozen=0)
        self._following = asyncio.create_task(follower.run())
        self._following.add_done_callback(self._on_follower_done)

    def _on_follower_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (wrong := task.exception()) is not None:
            death = wrong if isinstance(wrong, EngineError) else EngineError(f"following the weights failed: {wrong!r}")
            self._on_engine_death(death)
