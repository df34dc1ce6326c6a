"""One request of an engine's self-check, read as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from seamlessflow.engine_check.records import Sampled

from .engines.base import Engine, SamplingParams


class Reading:
    """One request and what came of it so far."""

    def __init__(self, engine: Engine, request_id: str, prompt: Sequence[int], params: SamplingParams) -> None:
        self._prompt, self._tokens, self._logprobs, self._versions = tuple(prompt), list[int](), list[float](), list[int]()
        self._finish = ""
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read(engine, request_id, params))

        self._task.add_done_callback(lambda task: self._news.set())

    async def _read(self, engine: Engine, request_id: str, params: SamplingParams) -> None:
        async for chunk in engine.generate(request_id, list(self._prompt), params):
            self._tokens += chunk.token_ids
            self._logprobs += chunk.logprobs
            self._versions += [chunk.weights_version] * len(chunk.token_ids)
            if chunk.finish is not None:
                self._finish = chunk.finish.value
            self._news.set()

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    async def has(self, count: int) -> None:
        """Wait for so many tokens, or its end. Raises what the engine raised."""
        while self.num_tokens < count and not self._task.done():
            self._news.clear()
            await self._news.wait()
        if self._task.done():
            self._task.result()

    async def sampled(self) -> Sampled:
        """The whole of it. Raises what the engine raised."""
        await self._task
        return Sampled(
            prompt=self._prompt,
            tokens=tuple(self._tokens),
            logprobs=tuple(self._logprobs),
            versions=tuple(self._versions),
            finish=self._finish,
        )
