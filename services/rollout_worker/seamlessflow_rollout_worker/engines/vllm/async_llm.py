"""One running vLLM as its engine sees it: utilities that do not hang when it dies, and outputs that are all handled.

vLLM answers those who wait only for as long as it lives, hands on what was sampled by a task of its own, and drops what is on
its way to a request that is aborted. Here every call ends with an answer or with EngineError, and ``settled`` says when nothing
is on its way any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from seamlessflow_rollout_worker.engines.base import EngineError, stops_within
from seamlessflow_rollout_worker.engines.open_requests import died_of

from .request_slots import Request, how_to_draw

T = TypeVar("T")

LAST_WORDS_SECONDS = 5.0
"""How long the end waits for what was sampled; an engine that hangs must not hold up the end of a service."""
OnDeath = Callable[[EngineError], None]


class Link:
    """``llm``: an AsyncLLM that is ready, of this loop. ``on_death``: called once, when it has died or was declared dead."""

    def __init__(self, llm: Any, *, most_requests: int, on_death: OnDeath) -> None:
        self._llm, self._most_requests, self._on_death = llm, most_requests, on_death
        self._failure: object = None
        self._is_ending = False
        self._death: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        llm.output_handler.add_done_callback(self._on_handler_end)

    @property
    def vocab_size(self) -> int:
        return int(self._llm.model_config.get_vocab_size())

    @property
    def cache_tokens(self) -> int | None:
        """Tokens whose keys and values fit into one replica's cache; None: vLLM has not said."""
        cache = self._llm.vllm_config.cache_config
        return cache.num_gpu_blocks * cache.block_size if cache.num_gpu_blocks else None

    @property
    def can_sleep(self) -> bool:
        return bool(self._llm.model_config.enable_sleep_mode)

    @property
    def is_dead(self) -> bool:
        return self._failure is not None

    def check(self) -> None:
        """Raises EngineError when it is dead."""
        if self._failure is not None:
            raise died_of(self._failure)

    def die(self, reason: object) -> None:
        """It cannot be used any more; everybody who waits is told."""
        if self._failure is None and not self._is_ending:
            self._failure = reason
            self._death.set_result(None)
            self._on_death(EngineError(f"The engine died of {reason!r}. What was sampled before has been reported."))

    async def submit(self, request: Request, *, salt: str, max_tokens: int, on_output: Callable[[Any], None]) -> str:
        """Add a request under its present name; returns vLLM's own name for it. Only requests of one ``salt`` share prefixes.

        ``on_output`` hears each output at once: vLLM's collector would join them, across a change of versions.
        """
        stops = stops_within(request.params, self.vocab_size)
        collector = await self._llm.add_request(request.name, *_prompt_and_params(request, salt, max_tokens, stops))
        early = collector.get_nowait()
        collector.put = on_output
        if early is not None:
            on_output(early)
        return str(collector.request_id)

    async def stop_sampling(self, internal_id: str) -> None:
        """Have vLLM's scheduler forget a request, which keeps its place on our side: what was sampled for it still arrives.

        Returns when all of it has. ``abort`` alone would drop it.
        """
        await self._call(self._llm.engine_core.abort_requests_async([internal_id]))
        await self._call(self._llm.is_paused())
        await self.settled()

    async def abort(self, names: Iterable[str]) -> None:
        """End requests; the last output of each says so. What is on its way to them is dropped."""
        await self._call(self._llm.abort(list(names)))

    async def forget(self, name: str) -> None:
        """``abort`` for one to which nobody listens; a death is somebody else's news."""
        with contextlib.suppress(EngineError):
            await self.abort([name])

    async def pause(self) -> None:
        """Returns when nothing is sampled any more and every output has been handled; requests and caches stay."""
        await self._call(self._llm.pause_generation(mode="keep", clear_cache=False))
        await self.settled()

    async def resume(self) -> None:
        await self._call(self._llm.resume_generation())

    async def sleep(self) -> None:
        """``pause``, with weights moved to the host and keys and values dropped: they are computed again after ``wake``."""
        await self._call(self._llm.sleep(level=1, mode="keep"))
        await self.settled()

    async def wake(self, part: str | None = None) -> None:
        """ "weights", "kv_cache" or None: all. Sampling goes on when all is awake."""
        await self._call(self._llm.wake_up(None if part is None else [part]))

    async def load(self, file: Path) -> None:
        await self._call(self._llm.collective_rpc("load_from_file", args=(str(file),)))

    async def label(self, weights_version: int) -> None:
        """What vLLM itself is to call the weights from now on."""
        await self._call(self._llm.update_weight_version(str(weights_version)))

    async def end(self) -> None:
        """Hear what was sampled, then end its processes. What a dead one says no longer matters."""
        if self._failure is None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await self.pause()
        self._is_ending = True
        await asyncio.to_thread(self._llm.shutdown)
        self._llm.shutdown = lambda: None  # vLLM's finaliser calls it again, and fails where the interpreter is ending

    async def settled(self) -> None:
        """Return when every output that had left vLLM's scheduler before has been handled.

        vLLM's output handler takes outputs from a queue and works on them in slices, letting others run in between; a utility's
        answer overtakes those in the queue. So: until it has taken the last one, and for as many turns as its slices need.
        """
        from vllm import envs

        while not self._llm.engine_core.outputs_queue.empty() and self._failure is None:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        for _ in range(1 + self._most_requests // max(1, envs.VLLM_V1_OUTPUT_PROC_CHUNK_SIZE)):
            await asyncio.sleep(0)

    async def _call(self, work: Awaitable[T]) -> T:
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[Any]] = {task, self._death}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        except Exception as wrong:
            if self._llm.errored:
                self.die(wrong)
            raise EngineError(f"vLLM failed: {wrong}") from wrong
        finally:
            task.cancel()
        raise died_of(self._failure)

    def _on_handler_end(self, handler: asyncio.Task[None]) -> None:
        """vLLM's output handler ends only with vLLM; who waits for no output hears it here alone."""
        self.die("its processes have gone")


def _prompt_and_params(request: Request, salt: str, max_tokens: int, stops: tuple[int, ...]) -> tuple[Any, Any]:
    from vllm import SamplingParams
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        temperature=0.0,  # of the rows that our draws leave
        max_tokens=max_tokens,
        stop_token_ids=list(stops),
        ignore_eos=True,
        detokenize=False,
        logprobs=0,
        flat_logprobs=True,
        output_kind=RequestOutputKind.DELTA,
        extra_args=how_to_draw(request.params, request.seed),
    )
    return tokens_input(request.prompt_ids, cache_salt=salt), params
