"""An engine on a transformers model: asyncio outside, one thread that owns model and cache inside.

    asyncio loop                                            engine thread
    generate, interrupt, pause, load_weights  ──jobs──▶     between two forward passes: run them
    iterators wake   ◀──loop.call_soon_threadsafe──────     after a pass: deliver what was sampled

Tokens and "job done" reach the loop through its one queue, in order: that is why what was sampled before a pause or an
interrupt is reported before it returns. When the thread dies, every running request and every later call raises
EngineError with the reason; ``stop`` then ``start`` brings a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

from seamlessflow_rollout_worker.engines.base import Chunk, EngineError, PrefixUse, SamplingParams
from seamlessflow_rollout_worker.engines.open_requests import ALREADY_RUNNING, NOT_RUNNING, died_of
from seamlessflow_rollout_worker.engines.thread_bridge import AwaitedJobs, call_in
from seamlessflow_rollout_worker.engines.token_sampler import Draws

from .decode_batch import DecodeBatch, Sequence
from .engine_base import ModelFront
from .engine_thread import EngineThread


class TransformersEngine(ModelFront):
    """Implements ``Engine``; see there for the promises, and ``ModelFront`` for the parameters.

    Weights are exchanged between two passes, and running requests keep their caches; new requests share cached prefixes
    only with rows that the present weights computed from the first token on.
    A seeded request draws the same numbers in any company, but batched arithmetic rounds differently from batch to
    batch (most in bfloat16), so a token may still change where two candidates are nearly equal.
    """

    _vocab_size: int
    _jobs: AwaitedJobs
    _thread: EngineThread | None = None
    _failure: BaseException | None = None
    _prefix_use = PrefixUse()

    @property
    def prefix_use(self) -> PrefixUse:
        """Written by the engine's thread, read here: two numbers for people."""
        return self._prefix_use

    @property
    def weights_version(self) -> int:
        return self._weights_version if self._thread is None else self._thread.weights_version

    async def start(self, model_dir: Path, *, weights_version: int) -> None:
        if self._thread is not None:
            raise EngineError(ALREADY_RUNNING)
        model = await self._load(model_dir)
        self._vocab_size, self._weights_version, self._failure = model.vocab_size, weights_version, None
        self._jobs = AwaitedJobs()
        loop = asyncio.get_running_loop()
        batch = DecodeBatch(model, num_slots=self._num_slots, max_tokens=self._max_context_tokens)
        self._prefix_use = batch.prefix_use
        self._thread = EngineThread(
            model,
            batch,
            weights_version=weights_version,
            deliver=partial(call_in, loop, self._outbox.deliver),
            on_death=partial(call_in, loop, self._on_death),
        )
        self._thread.start()

    async def stop(self) -> None:
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        thread.submit(thread.finish)
        await asyncio.to_thread(thread.join)
        self._weights_version = thread.weights_version
        if self._failure is None:
            self._outbox.interrupt_all(thread.weights_version)

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        thread = self._alive()
        ticket, box = self._admit(request_id, prompt_ids, params, vocab_size=self._vocab_size)
        draws = Draws(params.seed, self._engine_stream)
        thread.submit(partial(thread.add, Sequence(ticket, list(prompt_ids), params, draws, params.max_tokens)))
        try:
            async for chunk in box:
                yield chunk
        finally:
            self._outbox.close(request_id)
            thread.submit(partial(thread.drop, ticket))

    async def interrupt(self, request_id: str) -> None:
        ticket = self._outbox.ticket_of(request_id)
        if ticket is not None:
            thread = self._alive()
            await self._run_in(thread, partial(thread.interrupt, ticket))

    async def pause(self) -> None:
        thread = self._alive()
        await self._run_in(thread, thread.pause)

    async def resume(self) -> None:
        thread = self._alive()
        await self._run_in(thread, thread.resume)

    async def stage_weights(self, file: Path) -> None:
        self._alive()
        await self._staging.stage(file)

    async def load_weights(self, file: Path, *, weights_version: int) -> None:
        thread = self._alive()
        sources = await self._staging.take(file)
        await self._run_in(thread, partial(thread.load, sources, weights_version))

    async def sleep(self) -> None:
        """Pause and free the cache; the weights stay in memory. Running requests are prefilled again after ``wake``."""
        thread = self._alive()
        await self._run_in(thread, thread.release)

    def _alive(self) -> EngineThread:
        if self._failure is not None:
            raise died_of(self._failure) from self._failure
        if self._thread is None:
            raise EngineError(NOT_RUNNING)
        return self._thread

    async def _run_in(self, thread: EngineThread, job: Callable[[], None]) -> None:
        await self._jobs.run(thread.submit, job)

    def _on_death(self, error: BaseException) -> None:
        self._failure = error
        failure = EngineError(f"The engine died of {error!r}. What was sampled before has been reported.")
        self._outbox.fail_all(failure)
        self._jobs.fail_all(failure)
