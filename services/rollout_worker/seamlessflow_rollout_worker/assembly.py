"""What a worker has for one run once its engine has started: the parts, and how they are wired to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seamlessflow.run_config import RunConfig
from seamlessflow.runtime import Context

from .building import BuildEngine
from .config import WorkerSettings
from .contexts import Contexts
from .engines.base import Engine, EngineError, KnowsCache
from .engines.two_versions import TwoVersions
from .inflight import Pace
from .intake import Intake
from .keeping import Keeping
from .pulls import Pulls
from .sampling import Sampler
from .texts import Texts
from .update_steps import Step
from .versions import Fetched, LocalVersions
from .weights import WeightsFollower


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
        context.speaker,
        context.inbox,
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
        context.speaker,
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
            context.speaker,
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
