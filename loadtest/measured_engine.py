"""An engine that notes when what happens: what a rollout-worker of a benchmark runs instead of the bare one.

It passes everything on as it is; what it notes are moments (``time.monotonic``, one clock for all processes of a machine).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from seamlessflow_rollout_worker.engines.base import (
    Chunk,
    CountsPrefixes,
    Engine,
    Finish,
    KnowsCache,
    PrefixUse,
    SamplingParams,
)


@dataclass(slots=True)
class Pause:
    """One update, as sampling saw it. Moments; 0.0: not yet."""

    asked: float = 0.0
    paused: float = 0.0
    loaded: float = 0.0
    resumed: float = 0.0
    last_before: float = 0.0
    """The last token's arrival until it was paused."""
    first_after: float = 0.0
    num_running: int = 0
    """Generations that it interrupted."""

    @property
    def is_over(self) -> bool:
        """Sampling goes on, or there was none."""
        return bool(self.first_after or (self.resumed and not self.num_running))


class MeasuredEngine:
    """``Engine``, and what was noted since ``told`` was called last."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pauses: list[Pause] = []
        self._forget()
        self._running = 0
        self._last_token = 0.0
        self._pause: Pause | None = None

    def _forget(self) -> None:
        self._pauses = [pause for pause in self._pauses if not pause.is_over]
        self._arrivals: list[float] = []
        self._calls: dict[str, list[float]] = {}
        self._ends: dict[str, int] = {}

    def told(self) -> dict[str, Any]:
        """pauses; arrivals of tokens; calls: by generation, when it was called and when its first token came; ends, counted by
        kind."""
        told = {
            "pauses": [asdict(pause) for pause in self._pauses if pause.is_over],
            "arrivals": self._arrivals,
            "calls": {name: moments for name, moments in self._calls.items() if len(moments) == 2},
            "ends": self._ends,
        }
        self._forget()
        return told

    @property
    def weights_version(self) -> int:
        return self._engine.weights_version

    @property
    def num_slots(self) -> int:
        return self._engine.num_slots

    @property
    def max_context_tokens(self) -> int:
        return self._engine.max_context_tokens

    @property
    def cache_tokens(self) -> int | None:
        """``KnowsCache``: a worker decides by it how many episodes it takes."""
        return self._engine.cache_tokens if isinstance(self._engine, KnowsCache) else None

    @property
    def prefix_use(self) -> PrefixUse | None:
        """``CountsPrefixes``."""
        return self._engine.prefix_use if isinstance(self._engine, CountsPrefixes) else None

    async def start(self, model_dir: Path, *, weights_version: int) -> None:
        await self._engine.start(model_dir, weights_version=weights_version)

    async def stop(self) -> None:
        await self._engine.stop()

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        generation = request_id.partition(".")[0]
        moments = self._calls.setdefault(generation, [])
        moments.append(time.monotonic())
        self._running += 1
        try:
            async for chunk in self._engine.generate(request_id, prompt_ids, params):
                if chunk.token_ids:
                    self._arrived(moments)
                if chunk.finish is not None:
                    self._ends[chunk.finish.value] = self._ends.get(chunk.finish.value, 0) + 1
                yield chunk
        finally:
            self._running -= 1

    def _arrived(self, moments: list[float]) -> None:
        now = time.monotonic()
        if len(moments) == 1:
            moments.append(now)
        self._arrivals.append(now)
        self._last_token = now
        if self._pause is not None and self._pause.resumed:
            self._pause.first_after, self._pause = now, None

    async def interrupt(self, request_id: str) -> None:
        await self._engine.interrupt(request_id)

    async def pause(self) -> None:
        pause = Pause(asked=time.monotonic(), num_running=self._running)
        await self._engine.pause()
        pause.paused, pause.last_before = time.monotonic(), self._last_token
        self._pause = pause
        self._pauses.append(pause)

    async def resume(self) -> None:
        await self._engine.resume()
        if self._pause is not None:
            # What the pause itself reported may have reached its readers only after it returned.
            self._pause.last_before = max(self._pause.last_before, self._last_token)
            self._pause.resumed = time.monotonic()

    async def stage_weights(self, file: Path) -> None:
        await self._engine.stage_weights(file)

    async def load_weights(self, file: Path, *, weights_version: int) -> None:
        await self._engine.load_weights(file, weights_version=weights_version)
        if self._pause is not None:
            self._pause.loaded = time.monotonic()

    async def sleep(self) -> None:
        await self._engine.sleep()

    async def wake(self) -> None:
        await self._engine.wake()


NOT_CUT = (Finish.LENGTH.value, Finish.STOP.value)
"""Ends that no update caused."""
