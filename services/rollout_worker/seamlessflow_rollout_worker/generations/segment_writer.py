"""Saying what was sampled while sampling goes on: one writer per generation, appends in order, never in the way.

    engine ──put──▶ Unsaid ──writer task──▶ claim, segment, … , last segment and end     each append waits for the one before

The engine's side never waits. While an append travels, tokens gather and go out together with the next one. An end is a
message of its own only where all tokens are said when it comes, and so is a claim only where nothing was sampled at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from seamlessflow.contracts import (
    Event,
    GenerationClaimed,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    SegmentSampled,
)
from seamlessflow.runtime import Journal
from seamlessflow_rollout_worker.engines.base import Chunk

from .generation_state import History, Pace, Stretch, Unsaid, segment_of

# What one attempt appends to the subject of its generation, each event behind the one before it: the fence. Pure.
#
#     claim ─▶ segment ─▶ … ─▶ last segment, or end          what was there at once: segment that claims ─▶ …
#
# ``last_seq`` is what the next append expects to be the last of the subject, and it only ever becomes the sequence of what was
# stored of this attempt itself. So whatever somebody else appended since refuses the next append, however it came about.


class Chain:
    """One claim and what follows from it. ``history``: what was read before, and the claim stands on.

    bucket: in which the next generations of its episode find this worker; said with the end.
    """

    def __init__(
        self, request: GenerationRequested, history: History, *, worker: str, nonce: str, bucket: int | None = None
    ) -> None:
        self.claimed = False
        """Whether something of ours is stored: a refusal after that means that somebody claimed later."""
        self.last_seq = history.last_seq
        self._request, self._worker, self._nonce = request, worker, nonce
        self._bucket = bucket if bucket != request.bucket else None
        self._start = len(history.token_ids)

    def claim(self) -> GenerationClaimed:
        """For what is not sampled at once."""
        request = self._request
        return GenerationClaimed(
            run=request.run,
            episode=request.episode,
            generation=request.generation,
            shard=request.shard,
            worker=self._worker,
            nonce=self._nonce,
            start=self._start,
        )

    def segment(self, stretch: Stretch, end: GenerationFinish | None = None) -> SegmentSampled:
        """``end``: nothing comes after it. The first thing that an attempt stores is its claim, too."""
        bucket = None if end is None else self._bucket
        return segment_of(self._request, self._nonce, stretch, end, None if self.claimed else self._worker, bucket)

    def end(self, finish: GenerationFinish, num_tokens: int) -> GenerationEnded:
        """``num_tokens``: of the whole generation, all stored before."""
        request = self._request
        return GenerationEnded(
            run=request.run,
            episode=request.episode,
            generation=request.generation,
            shard=request.shard,
            nonce=self._nonce,
            finish=finish,
            num_tokens=num_tokens,
            bucket=self._bucket,
        )

    def stored(self, seq: int) -> None:
        """What was made last is in the journal, under this sequence."""
        self.last_seq, self.claimed = seq, True


CLAIM_SECONDS = 0.002
"""How long a claim waits for a first segment that can stand for it. Who takes the generation over meanwhile is not harmed by
it, since nothing was said yet."""


class SegmentWriter:
    """Claims a generation, then says its tokens. Make it inside a running loop; it starts at once.

    bucket: in which the next generations of its episode find this worker.
    on_failure: called once when an append was refused or failed; ``finish`` then raises the same error.
    """

    def __init__(
        self,
        journal: Journal,
        request: GenerationRequested,
        history: History,
        *,
        worker: str,
        nonce: str,
        pace: Pace,
        bucket: int | None = None,
        on_failure: Callable[[], None],
    ) -> None:
        self.num_said = 0
        """Tokens stored under this claim."""
        self._journal = journal
        self._chain = Chain(request, history, worker=worker, nonce=nonce, bucket=bucket)
        self._unsaid = Unsaid(len(history.token_ids), pace)
        self._on_failure = on_failure
        self._clock = asyncio.get_running_loop().time
        self._wake = asyncio.Event()
        self._flushes: list[asyncio.Event] = []
        self._closing = False
        self._end: GenerationFinish | None = None
        self._is_end_said = False
        self._task = asyncio.create_task(self._write())
        self._task.add_done_callback(self._on_done)

    @property
    def claimed(self) -> bool:
        """Whether something of ours is stored: a refusal after that means that somebody claimed later."""
        return self._chain.claimed

    @property
    def failed(self) -> bool:
        """Whether an append was refused or failed: what is sampled from here on counts for nothing."""
        return self._task.done()

    def put(self, chunk: Chunk, end: GenerationFinish | None = None) -> None:
        """Take over what the engine sampled. Never waits. ``end``: nothing comes after it, and ``finish`` will say the same."""
        self._end = end
        self._unsaid.add(chunk.token_ids, chunk.logprobs, chunk.weights_version, self._clock())
        self._wake.set()

    async def flush(self) -> None:
        """Return when all that was taken over is stored, or when no more of it will be."""
        said = asyncio.Event()
        self._flushes.append(said)
        self._wake.set()
        waiting = asyncio.create_task(said.wait())
        try:
            await asyncio.wait((waiting, self._task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def finish(self, end: GenerationFinish | None) -> None:
        """Say what is unsaid, then the end (None: it goes on elsewhere).

        Raises SequenceMismatch when an append was refused, Unavailable when the journal is gone.
        """
        self._end, self._closing = end, True
        self._wake.set()
        await asyncio.shield(self._task)

    def cancel(self) -> None:
        """Stop; what is unsaid is dropped. Nothing after ``finish``."""
        self._task.cancel()

    async def _write(self) -> None:
        if not await self._has_segment_at_once():
            await self._append(self._chain.claim())
        while await self._something_due():
            # One at a time: what was sampled during an append waits its own time again.
            if (stretch := self._unsaid.take()) is not None:
                await self._append_segment(stretch, self._end if self._unsaid.is_empty else None)
        if self._end is not None and not self._is_end_said:
            await self._append(self._chain.end(self._end, self._unsaid.num_tokens_ever))

    async def _has_segment_at_once(self) -> bool:
        """Whether tokens that wait for nothing more come within CLAIM_SECONDS."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLAIM_SECONDS):
                while self._unsaid.is_empty and not (self._closing or self._flushes):
                    self._wake.clear()
                    await self._wake.wait()
        left = self._unsaid.seconds_left(self._clock())
        return left == 0.0 or (left is not None and (self._end is not None or self._closing or bool(self._flushes)))

    async def _something_due(self) -> bool:
        """Wait until something should be said. False: closing, and everything is said."""
        while True:
            left = self._unsaid.seconds_left(self._clock())
            if left is None:
                self._end_flushes()
            if self._closing:
                return left is not None
            if left == 0.0 or self._flushes:
                return True
            self._wake.clear()
            try:
                async with asyncio.timeout(left):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _end_flushes(self) -> None:
        for said in self._flushes:
            said.set()
        self._flushes.clear()

    async def _append_segment(self, stretch: Stretch, end: GenerationFinish | None) -> None:
        """``end``: nothing comes after it."""
        await self._append(self._chain.segment(stretch, end))
        self.num_said += len(stretch.token_ids)
        self._is_end_said = end is not None

    async def _append(self, event: Event) -> None:
        self._chain.stored(await self._journal.append(event, self._chain.last_seq))

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._on_failure()
