"""An engine on vLLM's ``AsyncLLM``: tokens in, tokens out, on one device or many.

    asyncio loop                                             vLLM's processes (vllm_process)
    generate ──waits for a slot, and while paused──submit──▶  scheduler, model, our draws (vllm_draws)
    _on_output  ◀──vLLM's output handler, in this loop──────  after a step: what was sampled
    pause, load_weights, sleep, ... ──utilities─────────────▶ between two steps

Why each promise of ``Engine`` holds, where vLLM alone would not keep it (docs/adr/0013-vllm.md):

* outputs are on their way when a utility returns, so ``pause`` and ``interrupt`` wait until all of them have been handled;
* a version is stamped when an output is handled; no output is on its way when it changes, and vLLM's own account is compared;
* cached prefixes are salted by the load that computed them. Who has no token yet when weights are loaded is submitted again;
* requests beyond the slots, and those that come while paused, wait on our side.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from seamlessflow_rollout_worker.engines.base import Chunk, EngineError, Finish, PrefixUse, SamplingParams
from seamlessflow_rollout_worker.engines.open_requests import ALREADY_RUNNING, NOT_PAUSED, NOT_RUNNING, EngineFront
from seamlessflow_rollout_worker.engines.weights_staging import Layout, Staging

from .async_llm import Link
from .process import Wanted, context_cap, start_llm
from .request_slots import FINISHES, Request, Requests, what_is_wrong


class VllmEngine(EngineFront):
    """Implements ``Engine``; see there for the promises.

    dtype, num_slots, max_context_tokens, num_threads, seed: as for ``ModelFront``. options: more arguments of vLLM's engine
    (``[model.engine_options]``), such as tensor_parallel_size. ``sleep`` frees a GPU's memory: weights move to the host,
    keys and values are dropped, and what runs is prefilled again after ``wake``; on a CPU it only pauses.
    A seeded request draws the same numbers in any company, but batched arithmetic rounds differently from batch to batch.
    """

    def __init__(
        self,
        *,
        dtype: str = "bfloat16",
        num_slots: int = 64,
        max_context_tokens: int = 2048,
        num_threads: int | None = None,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(num_slots=num_slots, max_context_tokens=max_context_tokens)
        self._dtype, self._num_threads, self._options = dtype, num_threads, dict(options or {})
        self._engine_stream = random.Random(seed)  # noqa: S311 - sampling, not secrets
        self._requests = Requests(num_slots)
        self._submitting: set[asyncio.Task[None]] = set()
        self._forgetting: set[asyncio.Task[None]] = set()
        self._link: Link | None = None
        self._staging: Staging[Path]
        self._loading: asyncio.Task[None] | None = None
        self._num_loads = 0
        self._is_feeding = self._is_paused = self._is_asleep = self._weights_are_awake = False
        self._prefix_use = PrefixUse()

    @property
    def prefix_use(self) -> PrefixUse:
        return self._prefix_use

    @property
    def cache_tokens(self) -> int | None:
        return None if self._link is None else self._link.cache_tokens

    async def start(self, model_dir: Path, *, weights_version: int) -> None:
        if self._link is not None:
            raise EngineError(ALREADY_RUNNING)
        self._max_context_tokens = context_cap(model_dir, self._max_context_tokens)
        layout = await asyncio.to_thread(Layout.of_model, model_dir, dtype=self._dtype)
        size = {"num_slots": self._num_slots, "max_context_tokens": self._max_context_tokens}
        wanted = Wanted(model_dir, self._dtype, num_threads=self._num_threads, options=self._options, **size)
        self._link = Link(await _started(wanted), most_requests=self._num_slots, on_death=self._outbox.fail_all)
        self._staging, self._prefix_use, self._loading = Staging(layout.stage), PrefixUse(), None
        self._is_paused = self._is_asleep = self._weights_are_awake = False
        await self._link.label(weights_version)
        self._weights_version, self._is_feeding = weights_version, True
        self._num_loads += 1

    async def stop(self) -> None:
        if self._link is None:
            return
        link, self._link = self._link, None
        if self._loading is not None:
            self._loading.cancel()
        await link.end()
        if not link.is_dead:  # else they have been told
            self._outbox.interrupt_all(self._weights_version)
        self._requests.clear()

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        link = self._alive()
        ticket, box = self._admit(request_id, prompt_ids, params, vocab_size=link.vocab_size)
        seed = self._engine_stream.getrandbits(53) if params.seed is None else params.seed
        request = Request(ticket, list(prompt_ids), params, seed)
        self._requests.add(request)
        self._feed()
        try:
            async for chunk in box:
                yield chunk
        finally:
            self._outbox.close(request_id)
            self._let_go(request)

    async def interrupt(self, request_id: str) -> None:
        request = self._requests.find(self._outbox.ticket_of(request_id))
        if request is None:
            return
        link = self._alive()
        while self._requests.is_running(request):
            await self._submissions()
            name = request.name
            await link.stop_sampling(request.internal_id)
            if request.name == name:  # else it was submitted again meanwhile
                await link.abort([name])
                break
        if self._requests.end(request):
            self._outbox.deliver([(request.ticket, Chunk((), (), self._weights_version, Finish.INTERRUPTED))])
        self._feed()

    async def pause(self) -> None:
        link = self._alive()
        self._is_feeding = False
        await self._submissions()
        await link.pause()
        self._is_paused = True

    async def resume(self) -> None:
        await self._end_of_loading()
        link = self._alive()
        if self._is_asleep:
            await link.wake("kv_cache" if self._weights_are_awake else None)
            self._is_asleep = self._weights_are_awake = False
        await link.resume()
        self._is_feeding, self._is_paused = True, False
        self._feed()

    async def stage_weights(self, file: Path) -> None:
        self._alive()
        await self._staging.stage(file)

    async def load_weights(self, file: Path, *, weights_version: int) -> None:
        link = self._alive()
        if not self._is_paused:
            raise EngineError(NOT_PAUSED)
        await self._staging.take(file)
        # Whoever gives up waiting does not stop vLLM; ``resume`` then waits for the end, so that no token has a wrong version.
        loading = self._loading = asyncio.create_task(self._load(link, file, weights_version))
        await asyncio.wait({loading})
        if loading.cancelled():  # by ``stop``: nobody cancelled our caller
            raise EngineError(NOT_RUNNING)
        loading.result()

    async def sleep(self) -> None:
        await self.pause()
        link = self._alive()
        if link.can_sleep and not self._is_asleep:
            await link.sleep()
            self._is_asleep = True

    def _alive(self) -> Link:
        if self._link is None:
            raise EngineError(NOT_RUNNING)
        self._link.check()
        return self._link

    async def _load(self, link: Link, file: Path, weights_version: int) -> None:
        if self._is_asleep and not self._weights_are_awake:
            await link.wake("weights")
            self._weights_are_awake = True
        # They would find prefixes that the old weights computed.
        if unseen := self._requests.withdraw_unseen():
            await link.abort(unseen)
        try:
            await link.load(file)
        except EngineError as wrong:
            link.die(f"loading weights version {weights_version}, so that nobody knows which it has: {wrong}")
            raise
        await link.label(weights_version)
        self._weights_version = weights_version
        self._num_loads += 1

    async def _end_of_loading(self) -> None:
        if self._loading is not None:
            await asyncio.wait({self._loading})
            if not self._loading.cancelled():
                self._loading.exception()  # was raised where it was waited for, or has ended the engine
            self._loading = None

    async def _submissions(self) -> None:
        """Returns when those under way have reached vLLM."""
        if self._submitting:
            await asyncio.wait(set(self._submitting))

    def _feed(self) -> None:
        """Submit those for whom there is a slot."""
        while self._is_feeding and self._link is not None and (request := self._requests.next_to_run()) is not None:
            task = asyncio.create_task(self._submit(self._link, request))
            self._submitting.add(task)
            task.add_done_callback(self._submitting.discard)

    async def _submit(self, link: Link, request: Request) -> None:
        name, room = request.submitted(), self._max_context_tokens - len(request.prompt_ids)
        # By the load, not by the version alone: prefixes stay apart whatever numbers are used.
        salt = f"{self._weights_version}.{self._num_loads}"
        hear = partial(self._on_output, link, request, name)
        try:
            max_tokens = min(request.params.max_tokens, room)
            request.internal_id = await link.submit(request, salt=salt, max_tokens=max_tokens, on_output=hear)
        except Exception as wrong:  # a request was checked before: what vLLM refuses now, it refuses because of itself
            link.die(wrong)
            return
        if not self._requests.is_open(request):
            await link.forget(name)

    def _on_output(self, link: Link, request: Request, name: str, output: Any) -> None:
        """What vLLM says of one request, in order; called by its output handler."""
        if isinstance(output, Exception):
            link.die(output)
            return
        if request.name != name or not self._requests.is_open(request):
            return
        completion = output.outputs[0]
        ids, logprobs = tuple(completion.token_ids), tuple(completion.logprobs.logprobs if completion.token_ids else ())
        finish = None if completion.finish_reason is None else FINISHES.get(completion.finish_reason)
        if not request.num_seen and ids:
            self._prefix_use.prompt_tokens += len(request.prompt_ids)
            self._prefix_use.cached_tokens += output.num_cached_tokens or 0
        request.note(len(ids), self._weights_version)
        if reason := what_is_wrong(request, completion, logprobs):
            link.die(reason)
            return
        if finish is not None:
            self._requests.end(request)
        if ids or finish is not None:
            self._outbox.deliver([(request.ticket, Chunk(ids, logprobs, self._weights_version, finish))])
        if finish is not None:
            self._feed()

    def _let_go(self, request: Request) -> None:
        """Nobody listens to it any more."""
        if self._requests.end(request) and request.internal_id and self._link is not None:
            task = asyncio.create_task(self._link.forget(request.name))
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)
        self._feed()


async def _started(wanted: Wanted) -> Any:
    """An AsyncLLM that is ready, its output handler running in this loop. One that comes too late is ended."""
    starting = asyncio.ensure_future(asyncio.to_thread(start_llm, wanted))
    try:
        llm = await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_discard)
        raise
    llm._run_output_handler()
    return llm


def _discard(starting: asyncio.Future[Any]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        threading.Thread(target=starting.result().shutdown, daemon=True).start()
