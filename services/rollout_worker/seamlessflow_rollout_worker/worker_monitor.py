"""Looking at a worker while it works: what people see of it, what it samples for nobody, and whether its engine hangs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from seamlessflow.bus.base import PROGRESS_SECONDS
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.runtime import Context
from seamlessflow.telemetry import count

from .config import WorkerSettings
from .engines.base import CountsPrefixes, Engine, EngineError, PrefixUse
from .engines.two_version_engine import TwoVersions
from .generations.context_budget import LOOK_SECONDS
from .generations.pulls import OWNER_PRIORITY
from .generations.throughput import Meter
from .run import Tenure

OBSERVE_SECONDS = 1.0


class Watchman:
    """Looks at whatever run the worker is in; ``tenure`` gives None when it is in none."""

    def __init__(
        self,
        context: Context,
        settings: WorkerSettings,
        tenure: Callable[[], Tenure | None],
        on_engine_death: Callable[[EngineError], None],
    ) -> None:
        self._context, self._settings, self._tenure, self._on_engine_death = context, settings, tenure, on_engine_death
        self._meter, self._counted = Meter(), PrefixUse()

    async def observe(self) -> None:
        """Show facts in the presence and notice an engine that hangs, every second until cancelled."""
        while True:
            await asyncio.sleep(OBSERVE_SECONDS)
            if (tenure := self._tenure()) is not None and tenure.sampler is not None:
                self._context.presence.update(facts=self._facts(tenure))
                self._check(tenure)

    async def drop_unwanted(self) -> None:
        """Stop sampling what nobody waits for any more, every few seconds until cancelled."""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            if (tenure := self._tenure()) is not None and tenure.sampler is not None:
                with suppress(SeamlessFlowError):  # the journal is away; asked again soon
                    await tenure.sampler.drop_unwanted()

    async def forget_ended(self) -> None:
        """Notice which episodes have ended whose contexts were here, every second until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if (tenure := self._tenure()) is not None:
                with suppress(SeamlessFlowError):  # the journal is away; asked again soon
                    await tenure.forget_ended()

    def _facts(self, tenure: Tenure) -> dict[str, str | int | float]:
        assert tenure.sampler is not None and tenure.engine is not None
        num_tokens, now = tenure.sampler.activity.num_tokens, asyncio.get_running_loop().time()
        speed = self._meter.tokens_per_second(num_tokens, now)
        return {
            "run": tenure.run,
            "model": tenure.config.model.name,
            "weights_version": tenure.engine.weights_version,
            "tokens_per_second": 0.0 if tenure.is_frozen else round(speed, 1),
            "generations": tenure.sampler.num_held,
            **self._affinity(tenure.engine, tenure.num_taken),
        }

    def _affinity(self, engine: Engine, num_taken: Counter[int]) -> dict[str, float]:
        """Share of prompt tokens that the engine's cache held; of an engine that does not tell, of generations that came to the
        owner of their bucket. Since the run was joined; empty before anything came."""
        use = engine.prefix_use if isinstance(engine, CountsPrefixes) else None
        if use is not None:
            self._count(use)
        if use is not None and use.prompt_tokens:
            return {"affinity_hit_rate": round(use.cached_tokens / use.prompt_tokens, 3)}
        if use is None and num_taken:
            return {"affinity_hit_rate": round(num_taken[OWNER_PRIORITY] / num_taken.total(), 3)}
        return {}

    def _count(self, use: PrefixUse) -> None:
        before = self._counted if use.prompt_tokens >= self._counted.prompt_tokens else PrefixUse()  # else a new engine
        count("prompt_tokens", number=use.prompt_tokens - before.prompt_tokens)
        count("cached_prompt_tokens", number=use.cached_tokens - before.cached_tokens)
        self._counted = replace(use)

    def _check(self, tenure: Tenure) -> None:
        assert tenure.sampler is not None
        activity = tenure.sampler.activity
        silent_seconds = 0.0 if tenure.is_frozen else activity.silent_seconds()
        if isinstance(tenure.engine, TwoVersions) and not tenure.is_frozen:
            silent_seconds = max(silent_seconds, tenure.engine.silent_seconds)
        if silent_seconds > self._settings.stall_seconds:
            self._on_engine_death(
                EngineError(
                    f"the engine was asked for {activity.num_sampling} generations and sampled nothing "
                    f"for {silent_seconds:.1f} s; they are handed back"
                )
            )
