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
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path

from seamlessflow.errors import BadInput
from services.rollout_worker.engines.base import Chunk, EngineError, SamplingParams, check_request
from services.rollout_worker.engines.causal_model import CausalModel
from services.rollout_worker.engines.decode_batch import DecodeBatch, Sequence
from services.rollout_worker.engines.draws import Draws
from services.rollout_worker.engines.engine_thread import EngineThread
from services.rollout_worker.engines.outbox import Outbox


class TransformersEngine:
    """Implements ``Engine``; see there for the promises.

    dtype: "bfloat16" or "float32". num_slots: sequences decoded side by side. max_context_tokens: capped by the model.
    num_threads: torch's threads, for the whole process; None leaves them as they are.
    seed: of the draws of requests that bring none; None: different in every process.

    Weights load in place, so running requests keep their caches over ``load_weights``; new requests share cached
    prefixes only with rows that the present weights computed from the first token on.
    A seeded request draws the same numbers in any company, but batched arithmetic rounds differently from batch to
    batch (most in bfloat16), so a token may still change where two candidates are nearly equal.
    """

    def __init__(
        self,
        *,
        dtype: str = "bfloat16",
        num_slots: int = 64,
        max_context_tokens: int = 2048,
        num_threads: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._dtype = dtype
        self._num_slots = num_slots
        self._max_context_tokens = max_context_tokens
        self._num_threads = num_threads
        self._engine_stream = random.Random(seed)  # noqa: S311 - sampling, not secrets
        self._vocab_size = 0
        self._weights_version = 0
        self._thread: EngineThread | None = None
        self._failure: BaseException | None = None
        self._outbox = Outbox()
        self._unfinished_jobs: set[asyncio.Future[None]] = set()

    @property
    def weights_version(self) -> int:
        return self._weights_version if self._thread is None else self._thread.weights_version

    @property
    def num_slots(self) -> int:
        return self._num_slots

    @property
    def max_context_tokens(self) -> int:
        return self._max_context_tokens

    async def start(self, model_dir: Path, *, weights_version: int) -> None:
        if self._thread is not None:
            raise EngineError("The engine is already running; stop it first.")
        model = await asyncio.to_thread(self._load, model_dir)
        self._max_context_tokens = min(self._max_context_tokens, model.max_positions)
        self._vocab_size, self._weights_version, self._failure = model.vocab_size, weights_version, None
        loop = asyncio.get_running_loop()
        self._thread = EngineThread(
            model,
            DecodeBatch(model, num_rows=self._num_slots, max_tokens=self._max_context_tokens),
            weights_version=weights_version,
            deliver=partial(_call_in, loop, self._outbox.deliver),
            on_death=partial(_call_in, loop, self._on_death),
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
        check_request(prompt_ids, params, max_context_tokens=self._max_context_tokens, vocab_size=self._vocab_size)
        if self._outbox.ticket_of(request_id) is not None:
            raise BadInput(f"Request {request_id} is already running; ids must be unique among running requests.")
        ticket, box = self._outbox.open(request_id)
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

    async def load_weights(self, tensors: Mapping[str, object], *, weights_version: int) -> None:
        thread = self._alive()
        await self._run_in(thread, partial(thread.overwrite, tensors, weights_version))

    async def sleep(self) -> None:
        """Pause and free the cache; the weights stay in memory. Running requests are prefilled again after ``wake``."""
        thread = self._alive()
        await self._run_in(thread, thread.release)

    async def wake(self) -> None:
        await self.resume()

    def _load(self, model_dir: Path) -> CausalModel:
        import torch

        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        return CausalModel.load(model_dir, dtype=self._dtype)

    def _alive(self) -> EngineThread:
        if self._failure is not None:
            raise EngineError(f"The engine died of {self._failure!r}. Stop and start it.") from self._failure
        if self._thread is None:
            raise EngineError("The engine is not running; start it first.")
        return self._thread

    async def _run_in(self, thread: EngineThread, job: Callable[[], None]) -> None:
        """Return, or raise the job's error, when ``job`` has run between two passes."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def run_and_report() -> None:
            error: Exception | None = None
            try:
                job()
            except Exception as raised:
                error = raised
            _call_in(loop, _settle, done, error)

        self._unfinished_jobs.add(done)
        thread.submit(run_and_report)
        try:
            await done
        finally:
            self._unfinished_jobs.discard(done)

    def _on_death(self, error: BaseException) -> None:
        self._failure = error
        failure = EngineError(f"The engine died of {error!r}. What was sampled before has been reported.")
        self._outbox.fail_all(failure)
        for done in self._unfinished_jobs:
            _settle(done, failure)


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    """Complete ``done``, unless its waiter has gone."""
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
    """Call back in the loop; nobody is left to be told when it has been closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)
