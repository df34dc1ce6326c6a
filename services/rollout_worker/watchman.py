"""Looking at a worker while it works: what people see of it, what it samples for nobody, and whether its engine hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from seamlessflow.bus.base import PROGRESS_SECONDS
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.runtime import Context

from .config import WorkerSettings
from .engines.base import EngineError
from .meter import Meter
from .tenure import Tenure

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
        self._meter = Meter()

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

    def _facts(self, tenure: Tenure) -> dict[str, str | int | float]:
        assert tenure.sampler is not None and tenure.engine is not None
        num_tokens, now = tenure.sampler.activity.num_tokens, asyncio.get_running_loop().time()
        return {
            "run": tenure.run,
            "model": tenure.config.model.name,
            "weights_version": tenure.engine.weights_version,
            "tokens_per_second": round(self._meter.tokens_per_second(num_tokens, now), 1),
            "generations": tenure.sampler.num_held,
        }

    def _check(self, tenure: Tenure) -> None:
        assert tenure.sampler is not None
        activity = tenure.sampler.activity
        silent_seconds = 0.0 if tenure.is_frozen else activity.silent_seconds()
        if silent_seconds > self._settings.stall_seconds:
            self._on_engine_death(
                EngineError(
                    f"the engine was asked for {activity.num_sampling} generations and sampled nothing "
                    f"for {silent_seconds:.1f} s; they are handed back"
                )
            )
