"""Carrying out one decision about one generation: claim, sample while saying, end.

Continue   claim ∥ sample ─▶ end stored ─▶ DONE        the claim travels while the prompt is prefilled
              ├ a stop text is complete: what the engine sampled behind it is never said ─▶ end stored ─▶ DONE
              ├ interrupted, or engine died: flush ─▶ BACK
              ├ its call was abandoned meanwhile: flush, end stored ─▶ DONE
              ├ episode ended meanwhile: drop what is unsaid ─▶ DONE
              ├ claim refused: raises ClaimRefused, nothing was said
              └ a later append refused: somebody claimed it since ─▶ LOST
EndNow     claim, end stored ─▶ DONE
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from enum import Enum
from typing import cast

import structlog

from seamlessflow.contracts import GenerationFinish, GenerationRequested, Int32s
from seamlessflow.errors import SequenceMismatch
from seamlessflow.runtime import Journal
from seamlessflow_rollout_worker.engines.base import Chunk, Engine, EngineError, Finish, SamplingParams

from .abandonment import Interest
from .generation_state import Continue, EndNow, History, Pace
from .segment_writer import SegmentWriter
from .stop_detection import Stopping
from .throughput import Activity

log = structlog.get_logger()


class Verdict(Enum):
    """How a delivery ends."""

    DONE = "ack"
    BACK = "nak"
    """For whoever has room."""
    LATER = "nak after a rest"
    LOST = "nothing"
    """Somebody claimed it later: it is theirs."""


class ClaimRefused(Exception):
    """The History we claimed on was old: read it again, decide again."""


_ENDS = {Finish.STOP: GenerationFinish.STOP, Finish.LENGTH: GenerationFinish.LENGTH}


class Attempt:
    """One claim of one generation and what follows from it. ``ids``: prompt and all tokens so far; grows.

    stopping: was told the history; None: it has no stop texts. weights_version: to be sampled under. None: the newest.
    bucket: in which the next generations of its episode find this worker. None: the one that it is in.
    """

    def __init__(
        self,
        request: GenerationRequested,
        history: History,
        prompt: Int32s,
        engine: Engine,
        journal: Journal,
        activity: Activity,
        *,
        worker: str,
        pace: Pace,
        stopping: Stopping | None = None,
        interest: Interest | None = None,
        weights_version: int | None = None,
        bucket: int | None = None,
        on_engine_death: Callable[[EngineError], None],
    ) -> None:
        self.request = request
        self.interest = interest or Interest()
        """What the last look saw."""
        self.ids = prompt + history.token_ids
        self.num_said = 0
        """Tokens this attempt stored."""
        self._engine, self._journal, self._activity = engine, journal, activity
        self._history, self._worker, self._pace, self._stopping = history, worker, pace, stopping
        self._weights_version, self._bucket, self._on_engine_death = weights_version, bucket, on_engine_death
        self._nonce = secrets.token_hex(6)
        self._request_id = f"{request.generation}.{self._nonce}"
        self._interrupting: asyncio.Task[None] | None = None
        self._writer: SegmentWriter | None = None

    async def interrupt(self) -> None:
        """Make it end soon, with BACK; nothing when the engine is not sampling it (yet)."""
        with suppress(EngineError):  # a dead engine samples nothing
            await self._engine.interrupt(self._request_id)

    async def flush(self) -> None:
        """Return when all that was sampled is stored, or when no more of it will be."""
        if self._writer is not None:
            await self._writer.flush()

    async def heed(self, interest: Interest) -> None:
        """Note what a look saw. Where nobody waits any more: make it end soon, with DONE."""
        self.interest = interest
        if interest.is_over or interest.is_abandoned:
            await self.interrupt()

    async def carry_out(self, decision: EndNow | Continue) -> Verdict:
        """Raises ClaimRefused; Unavailable when the journal is gone; BadInput for what the engine refuses."""
        writer = self._writer = SegmentWriter(
            self._journal,
            self.request,
            self._history,
            worker=self._worker,
            nonce=self._nonce,
            pace=self._pace,
            bucket=self._bucket,
            on_failure=self._stop_sampling,
        )
        try:
            end = decision.finish if isinstance(decision, EndNow) else await self._sample(writer, decision.max_tokens)
            if self.interest.is_over:
                return Verdict.DONE  # nobody waits for it; what is unsaid was never sampled
            if end is None and self.interest.is_abandoned:
                end = GenerationFinish.CANCELLED
            await writer.finish(end)
            return Verdict.BACK if end is None else Verdict.DONE
        except SequenceMismatch:
            if not writer.claimed:
                raise ClaimRefused from None
            log.info(
                "generation.lost",
                episode=self.request.episode,
                generation=self.request.generation,
                reason="another worker claimed it later",
            )
            return Verdict.LOST
        finally:
            writer.cancel()
            self.num_said = writer.num_said

    async def _sample(self, writer: SegmentWriter, max_tokens: int) -> GenerationFinish | None:
        """Feed the writer from the engine; returns why it ended. None: it must go on elsewhere."""
        sampled: list[int] = []
        self._activity.begin()
        try:
            async with aclosing(self._chunks(max_tokens)) as chunks:
                async for whole in chunks:
                    self._activity.note(len(whole.token_ids))
                    chunk = self._until_stop(whole)
                    end = None if chunk.finish is None else _ENDS.get(chunk.finish)
                    writer.put(chunk, end)
                    sampled.extend(chunk.token_ids)
                    if chunk.finish is not None or writer.failed:
                        return end
        except EngineError as death:
            self._on_engine_death(death)
        finally:
            self._activity.end()
            self.ids += Int32s(sampled)
        return None

    def _until_stop(self, chunk: Chunk) -> Chunk:
        """The part of it that belongs to the generation; the last one where that completes a stop text."""
        if self._stopping is None:
            return chunk
        num_kept = self._stopping.num_kept(chunk.token_ids)
        if not self._stopping.is_complete:
            return chunk
        return replace(chunk, token_ids=chunk.token_ids[:num_kept], logprobs=chunk.logprobs[:num_kept], finish=Finish.STOP)

    def _chunks(self, max_tokens: int) -> AsyncGenerator[Chunk, None]:
        """The engine's iterator as what the protocol promises it to be: one that can be closed."""
        params = SamplingParams(
            temperature=self.request.sampling.temperature,
            top_p=self.request.sampling.top_p,
            max_tokens=max_tokens,
            stop_token_ids=self.request.stop_token_ids,
            seed=self.request.seed,
            is_streamed=self.request.stream,
            weights_version=self._weights_version,
        )
        return cast("AsyncGenerator[Chunk, None]", self._engine.generate(self._request_id, list(self.ids), params))

    def _stop_sampling(self) -> None:
        self._interrupting = asyncio.create_task(self.interrupt())
