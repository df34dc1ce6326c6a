"""An engine on transformers' continuous batching (``model.init_continuous_batching``): asyncio outside, its manager inside.

    asyncio loop                                              manager's thread
    generate, interrupt  ──add_request, cancel_request──▶     between two passes: take them
    _on_outputs  ◀─────────loop.call_soon_threadsafe─────     after a pass: deliver what was sampled
    pause, load_weights  ──▶ control thread ──pause()────▶    between two passes: stand still

Outputs and "paused" reach the loop through its one queue, in order: that is why what was sampled before a pause or an
interrupt is reported before it returns. The manager forgets a cancelled request without a word; we end it ourselves.
On a CPU ``transformers_engine`` is faster (docs/adr/0004-engine-loop.md has the figures).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seamlessflow_rollout_worker.engines.base import Chunk, EngineError, Finish, SamplingParams
from seamlessflow_rollout_worker.engines.open_requests import ALREADY_RUNNING, NOT_PAUSED, NOT_RUNNING, died_of

from .causal_model import CausalModel
from .engine_base import ModelFront
from .paged_manager import LoopRouter, OwnDraws, make_manager, pass_barrier, start_manager

# Standing still: transformers' ``manager.pause()``, a block of one thread, as pause and resume of an asyncio loop.
#
# A pause belongs to the thread that entered it, and ``stop`` from within one is an error. So one thread enters, leaves,
# stops and exchanges weights, in the order it is asked to; the loop only waits for it.


class ManagerControl:
    """One manager's pauses and its end. Every method raises EngineError when the manager has died."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._held: AbstractContextManager[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-control")

    async def start(self) -> None:
        await self._run(partial(start_manager, self._manager))

    async def stop(self) -> None:
        """End the manager's thread, paused or not; requests that have not ended fail. Not to be used afterwards."""

        def stop() -> None:
            self._release()
            self._manager.stop(block=True, hard_stop=True)

        await self._run(stop)
        self._thread.shutdown(wait=False)

    async def pause(self) -> None:
        """Returns between two passes; idempotent."""

        def hold() -> None:
            if self._held is None:
                pause = self._manager.pause()
                pause.__enter__()
                self._held = pause

        await self._run(hold)

    async def resume(self) -> None:
        await self._run(self._release)

    async def while_paused(self, job: Callable[[], None]) -> None:
        """Run ``job`` while the manager stands still; EngineError when it does not."""

        def run() -> None:
            if self._held is None:
                raise EngineError(NOT_PAUSED)
            job()

        await self._run(run)

    async def barrier(self) -> None:
        """Returns between two passes, which go on; at once while paused. Does not wait for other control jobs."""
        await asyncio.to_thread(_clearly, partial(pass_barrier, self._manager))

    def _release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            held.__exit__(None, None, None)

    async def _run(self, job: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, _clearly, job)


def _clearly(job: Callable[[], None]) -> None:
    """The manager says RuntimeError when its thread is gone, with the reason as the cause."""
    try:
        job()
    except RuntimeError as error:
        raise died_of(error.__cause__ or error) from error


@dataclass(slots=True)
class _Open:
    """A request that has not ended. num_seen: tokens reported; every output repeats all that came before it."""

    stop_token_ids: tuple[int, ...]
    num_seen: int = 0


@dataclass(frozen=True, slots=True)
class _Serving:
    """What exists between start and stop."""

    model: CausalModel
    manager: Any
    control: ManagerControl


class ContinuousBatchingEngine(ModelFront):
    """Implements ``Engine``; see there for the promises, and ``ModelFront`` for the parameters.

    Weights are exchanged while the manager stands still, and running requests keep their caches. New requests share no
    prefixes, whatever weights computed them. ``sleep`` frees nothing: the manager keeps its cache as long as it runs.
    """

    _serving: _Serving | None = None
    _failure: str | None = None
    _open: dict[int, _Open]
    """By ticket, which is also the request's id for the manager."""

    async def start(self, model_dir: Path, *, weights_version: int) -> None:
        if self._serving is not None:
            raise EngineError(ALREADY_RUNNING)
        model = await self._load(model_dir, attention="sdpa")
        self._open = {}
        manager = make_manager(
            model.module,
            OwnDraws(self._engine_stream),
            LoopRouter(asyncio.get_running_loop(), self._on_outputs),
            num_slots=self._num_slots,
            max_context_tokens=self._max_context_tokens,
        )
        control = ManagerControl(manager)
        try:
            await control.start()
        except EngineError:
            await control.stop()
            raise
        self._weights_version, self._failure = weights_version, None
        self._serving = _Serving(model, manager, control)

    async def stop(self) -> None:
        if self._serving is None:
            return
        serving, self._serving = self._serving, None
        await serving.control.stop()
        if self._failure is None:
            self._outbox.interrupt_all(self._weights_version)
        self._open.clear()

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        serving = self._alive()
        ticket, box = self._admit(request_id, prompt_ids, params, vocab_size=serving.model.vocab_size)
        self._open[ticket] = _Open(params.stop_token_ids)
        try:
            serving.manager.add_request(
                prompt_ids,
                request_id=str(ticket),
                max_new_tokens=min(params.max_tokens, self._max_context_tokens - len(prompt_ids)),
                streaming=True,
                eos_token_id=list(params.stop_token_ids),
                sampling=params,
            )
            self._alive()  # a manager that died in between dropped the request without a word
            async for chunk in box:
                yield chunk
        finally:
            self._outbox.close(request_id)
            if self._open.pop(ticket, None) is not None:
                serving.manager.cancel_request(str(ticket))

    async def interrupt(self, request_id: str) -> None:
        ticket = self._outbox.ticket_of(request_id)
        if ticket is None or ticket not in self._open:
            return
        serving = self._alive()
        serving.manager.cancel_request(str(ticket))
        await serving.control.barrier()
        if self._open.pop(ticket, None) is not None:
            self._outbox.deliver([(ticket, Chunk((), (), self._weights_version, Finish.INTERRUPTED))])

    async def pause(self) -> None:
        await self._alive().control.pause()

    async def resume(self) -> None:
        await self._alive().control.resume()

    async def stage_weights(self, file: Path) -> None:
        self._alive()
        await self._staging.stage(file)

    async def load_weights(self, file: Path, *, weights_version: int) -> None:
        serving, loop = self._alive(), asyncio.get_running_loop()
        sources = await self._staging.take(file)

        def adopt() -> None:
            serving.model.adopt(sources)
            # By way of the loop: outputs of the old weights that are still on their way there come first.
            loop.call_soon_threadsafe(partial(setattr, self, "_weights_version", weights_version))

        await serving.control.while_paused(adopt)

    def _alive(self) -> _Serving:
        if self._serving is None:
            raise EngineError(NOT_RUNNING)
        status = self._serving.manager.background_thread_status
        if self._failure is not None or status.can_accept_new_requests() is not None:
            raise died_of(self._failure or status.fatal_error)
        return self._serving

    def _on_outputs(self, outputs: list[Any]) -> None:
        """In the loop: put what is new into the boxes. An output with an error means that the manager has died."""
        for output in outputs:
            ticket = int(output.request_id)
            if ticket in self._open:
                self._report(ticket, output)
        errors = [output.error for output in outputs if output.error is not None]
        if errors and self._serving is not None and self._failure is None:
            self._failure = errors[0]
            failure = EngineError(f"The engine died of {errors[0]}. What was sampled before has been reported.")
            self._outbox.fail_all(failure)

    def _report(self, ticket: int, output: Any) -> None:
        request, token_ids = self._open[ticket], output.generated_tokens
        finish: Finish | None = None
        if output.is_finished() and output.error is None:
            finish = Finish.STOP if token_ids[-1] in request.stop_token_ids else Finish.LENGTH
            del self._open[ticket]
        new = slice(request.num_seen, len(token_ids))
        request.num_seen = len(token_ids)
        if token_ids[new]:
            chunk = Chunk(tuple(token_ids[new]), tuple(output.logprobs[new]), self._weights_version, finish)
            self._outbox.deliver([(ticket, chunk)])
