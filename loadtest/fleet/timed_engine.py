"""An engine that takes the time a device would take, and computes nothing: ``Engine`` over ``engine_model`` on a scaled clock.

    generate ──▶ its tokens are drawn at once (law) ──▶ engine_model ──a timer, at the next completion──▶ reported
                                                            └── reported so far: at pause, interrupt, and now and then

Keeps every promise of ``Engine`` and passes its suite. A generation that has a length of its own ends there with a stop token,
wherever it is continued; one that is interrupted keeps whole tokens of the data plane, so up to ``token_scale - 1`` modelled
tokens are sampled again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from seamlessflow.errors import BadInput
from seamlessflow_rollout_worker.engines.base import Chunk, EngineError, Finish, SamplingParams
from seamlessflow_rollout_worker.engines.open_requests import ALREADY_RUNNING, NOT_PAUSED, NOT_RUNNING, EngineFront
from seamlessflow_rollout_worker.engines.weights_staging import Staging

from .cost import Cost
from .engine_model import Engine as EngineModel
from .timed_cache import PrefixCache
from .timed_clock import Scale
from .timed_law import Law
from .timed_request import LengthOf, TimedRequest

REPORT_SECONDS = 5.0
"""Real seconds between two reports of what is being sampled; a killed worker loses at most this much of each generation."""
STREAMED_SECONDS = 0.05


class TimedEngine(EngineFront):
    """``cost``: of the device, in modelled seconds and tokens. ``scale``: how both stand to real ones.

    words: ids it says. length_of: None for one whose requests end at their budget or at a stop token that is drawn.
    """

    def __init__(
        self,
        cost: Cost,
        scale: Scale,
        *,
        words: Sequence[int],
        vocab_size: int,
        num_slots: int,
        max_context_tokens: int,
        length_of: LengthOf | None = None,
        report_seconds: float = REPORT_SECONDS,
        seed: int = 0,
    ) -> None:
        super().__init__(num_slots=num_slots, max_context_tokens=max_context_tokens)
        self._cost, self._scale, self._words, self._vocab_size = cost, scale, words, vocab_size
        self._length_of, self._report_seconds, self._seed = length_of, report_seconds, seed
        self._model: EngineModel | None = None
        self._requests: dict[int, TimedRequest] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._reports: asyncio.Task[None] | None = None

    @property
    def cache_tokens(self) -> int:
        """Of the data plane."""
        return self._scale.data_tokens(self._cost.kv_tokens)

    async def start(self, model_dir: Path, *, weights_version: int) -> None:
        if self._model is not None:
            raise EngineError(ALREADY_RUNNING)
        self._loop = asyncio.get_running_loop()
        self._weights_version = weights_version
        self._law = Law(self._words)
        self._staging = Staging(self._law.read)
        self._cache = PrefixCache(self.cache_tokens)
        self._stream = random.Random(self._seed)
        self._model = EngineModel(self._cost, slots=self._num_slots, now=self._now())
        self._reports = asyncio.create_task(self._report_now_and_then())

    async def stop(self) -> None:
        if self._model is None:
            return
        self._work()
        self._report()
        self._model = None
        self._requests.clear()
        self._plan()
        if self._reports is not None:
            self._reports.cancel()
        self._outbox.interrupt_all(self._weights_version)

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        model = self._work()
        ticket, box = self._admit(request_id, prompt_ids, params, vocab_size=self._vocab_size)
        try:
            self._begin(model, ticket, list(prompt_ids), params)
            async for chunk in box:
                yield chunk
        finally:
            self._take_out(ticket)
            self._outbox.close(request_id)

    async def interrupt(self, request_id: str) -> None:
        ticket = self._outbox.ticket_of(request_id)
        if self._model is None or ticket is None:
            return
        self._work()
        if ticket in self._requests:
            self._report_one(ticket)
            self._take_out(ticket)
            self._outbox.deliver([(ticket, Chunk((), (), self._weights_version, Finish.INTERRUPTED))])

    async def pause(self) -> None:
        model = self._work()
        self._report()
        model.pause()
        self._plan()

    async def resume(self) -> None:
        self._work().resume()
        self._plan()

    async def stage_weights(self, file: Path) -> None:
        self._work()
        await self._staging.stage(file)

    async def load_weights(self, file: Path, *, weights_version: int) -> None:
        if not self._work().paused:
            raise EngineError(NOT_PAUSED)
        logits = await self._staging.take(file)
        changed = logits is not None
        if logits is not None:
            self._law.overwrite(logits)
        self._weights_version = weights_version
        self._cache.clear()
        if changed:
            for ticket, request in self._requests.items():
                request.draw_rest(self._law, self._length_of, self._max_context_tokens)
                self._tell_again(ticket, request, has_cache=True)
        await asyncio.sleep(self._scale.real_seconds(self._cost.load_seconds))

    async def sleep(self) -> None:
        """Pause; keys and values are dropped, so what it still holds is prefilled again after ``wake``."""
        await self.pause()
        self._cache.clear()
        await asyncio.sleep(self._scale.real_seconds(self._cost.sleep_seconds))

    async def wake(self) -> None:
        self._work()
        await asyncio.sleep(self._scale.real_seconds(self._cost.wake_seconds))
        self._work()
        for ticket, request in self._requests.items():
            self._tell_again(ticket, request, has_cache=False)
        await self.resume()

    def _now(self) -> float:
        return self._scale.modelled_seconds(self._loop.time())

    def _work(self) -> EngineModel:
        """Work until now, and report what is complete. Raises EngineError when it is not running."""
        if self._model is None:
            raise EngineError(NOT_RUNNING)
        for done in self._model.advance(max(self._now(), self._model.now)):
            ticket = int(done.request)
            request = self._requests.pop(ticket)
            self._deliver(ticket, request, len(request.ids), request.finish)
            if request.weights_version == self._weights_version:
                self._cache.put(request.prompt + request.ids)
        return self._model

    def _plan(self) -> None:
        """A timer for the next completion."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = None if self._model is None else self._model.next_completion()
        if due is not None:
            self._timer = self._loop.call_at(self._scale.real_seconds(due), self._on_time)

    def _on_time(self) -> None:
        if self._model is not None:
            self._work()
            self._plan()

    def _begin(self, model: EngineModel, ticket: int, prompt: list[int], params: SamplingParams) -> None:
        if params.seed is None:
            params = replace(params, seed=self._stream.getrandbits(53))
        request = TimedRequest(prompt, params, self._weights_version)
        request.draw_rest(self._law, self._length_of, self._max_context_tokens)
        known = self._cache.num_known(prompt)
        scale = self._scale.token_scale
        try:
            model.add(str(ticket), prompt=scale * len(prompt), tokens=scale * len(request.ids), cached=scale * known)
        except ValueError as wrong:
            raise BadInput(f"{wrong}: the device holds {self._cost.kv_tokens} tokens. Nothing was sampled.") from wrong
        self._requests[ticket] = request
        self._plan()

    def _tell_again(self, ticket: int, request: TimedRequest, *, has_cache: bool) -> None:
        """Its length or its cache changed: the model forgets it and is told what is left."""
        assert self._model is not None
        self._model.interrupt(str(ticket))
        request.base, scale = request.num_reported, self._scale.token_scale
        context = scale * (len(request.prompt) + request.base)
        left = scale * (len(request.ids) - request.base)
        self._model.add(str(ticket), prompt=context, tokens=left, cached=context if has_cache else 0)

    def _take_out(self, ticket: int) -> None:
        if self._model is not None:
            self._work()
            if self._requests.pop(ticket, None) is not None:
                self._model.interrupt(str(ticket))
            self._plan()

    async def _report_now_and_then(self) -> None:
        since = 0.0
        while True:
            streamed = any(request.params.is_streamed for request in self._requests.values())
            pause = min(STREAMED_SECONDS, self._report_seconds) if streamed else self._report_seconds
            await asyncio.sleep(pause)
            since += pause
            self._work()
            self._plan()
            self._report(streamed_only=since < self._report_seconds)
            since = since % self._report_seconds

    def _report(self, *, streamed_only: bool = False) -> None:
        for ticket, request in self._requests.items():
            if request.params.is_streamed or not streamed_only:
                self._report_one(ticket)

    def _report_one(self, ticket: int) -> None:
        assert self._model is not None
        request = self._requests[ticket]
        sampled = request.base + self._model.sampled(str(ticket)) // self._scale.token_scale
        self._deliver(ticket, request, min(sampled, len(request.ids) - 1), None)

    def _deliver(self, ticket: int, request: TimedRequest, until: int, finish: Finish | None) -> None:
        chunk = request.report(until, self._weights_version, finish)
        if chunk is not None:
            self._outbox.deliver([(ticket, chunk)])
