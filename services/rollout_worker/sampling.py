"""One delivery of a generation, from the queue to its acknowledgement.

    delivered ─▶ episode ended? ─▶ weights new enough? ─▶ prompt, History ─▶ decide ─▶ claim ∥ sample ─▶ end ─▶ ack
                     │ ack              │ nak, later           │ nak, later                  │
                     ▼                  ▼                      ▼                             ├ interrupted: flush, nak
                                                                                             ├ refused: drop silently
                                                                                             └ engine died: flush, nak, report

Progress pings go on from the first moment to the last, also while the engine is frozen. A first delivery is taken for a
fresh generation without reading its subject; if that is wrong the claim is refused, and then the subject is read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import Enum
from typing import cast

import structlog

from seamlessflow.bus.base import Bus, Delivery
from seamlessflow.contracts import EpisodeEnded, GenerationFinish, GenerationRequested, Int32s
from seamlessflow.errors import BadInput, MalformedMessage, SequenceMismatch, Unavailable
from seamlessflow.runtime import Inbox, Speaker, keep_alive
from seamlessflow.runtime.inbox import MAX_ATTEMPTS, RETRY_SECONDS

from .engines.base import Chunk, Engine, EngineError, Finish, SamplingParams
from .inflight import AckOnly, Continue, EndNow, History, Pace, decide
from .journal import read_history
from .prompts import Prompts
from .segments import SegmentWriter

log = structlog.get_logger()

LATER_SECONDS = 0.5
"""How long a generation rests when its weights or its parent are not there yet."""
MAX_CLAIMS = 3
"""Claims of one delivery that may be refused before it is handed back."""
HAND_BACK_SECONDS = 5.0
"""How long handing back may take; what is not back by then comes again after ack_wait."""


class Verdict(Enum):
    """How a delivery ends."""

    DONE = "ack"
    BACK = "nak"
    """For whoever has room."""
    LATER = "nak after a rest"
    LOST = "nothing"
    """Somebody claimed it later: it is theirs."""


_ENDS = {Finish.STOP: GenerationFinish.STOP, Finish.LENGTH: GenerationFinish.LENGTH}


class ClaimRefused(Exception):
    """The History we claimed on was old."""


@dataclass(slots=True)
class Held:
    """A generation in the engine."""

    request: GenerationRequested
    request_id: str
    episode_ended: bool = False


class Sampler:
    """Handles deliveries of generations with one engine.

    on_engine_death: called when the engine failed; the generation at hand goes back to the queue.
    on_weights_wanted: called when a generation asks for newer weights than the engine's.
    """

    def __init__(
        self,
        engine: Engine,
        bus: Bus,
        speaker: Speaker,
        inbox: Inbox,
        *,
        worker: str,
        pace: Pace,
        on_engine_death: Callable[[EngineError], None],
        on_weights_wanted: Callable[[], None],
    ) -> None:
        self.num_tokens = 0
        """Tokens sampled since the start."""
        self.num_sampling = 0
        """Generations the engine is asked to sample."""
        self.last_progress_at = 0.0
        """Loop time of the last token, or of when the engine last had nothing to do or was frozen."""
        self._failures: dict[str, int] = {}
        self._engine, self._bus, self._speaker, self._inbox = engine, bus, speaker, inbox
        self._worker, self._pace = worker, pace
        self._on_engine_death, self._on_weights_wanted = on_engine_death, on_weights_wanted
        self._prompts = Prompts(bus, speaker)
        self._held: dict[str, Held] = {}
        self._handling: set[asyncio.Task[None]] = set()
        self._interrupts: set[asyncio.Task[None]] = set()
        self._accepting = True

    @property
    def num_held(self) -> int:
        """Deliveries that are neither acknowledged nor handed back."""
        return len(self._handling)

    def accept(self) -> None:
        """Take deliveries (again), with an engine that samples from now on."""
        self._accepting = True
        self._note(0)

    async def hand_back(self) -> int:
        """Interrupt everything, say what was sampled, nak; returns how many. Until ``accept`` deliveries are nak'ed."""
        self._accepting = False
        num_held = len(self._handling)
        try:
            async with asyncio.timeout(HAND_BACK_SECONDS):
                while self._handling:
                    await asyncio.gather(*map(self._interrupt, self._held))
                    if self._handling:
                        await asyncio.wait(set(self._handling), timeout=0.05)
        except TimeoutError:
            stuck = [held.request.generation for held in self._held.values()]
            log.error(
                "generations.not_handed_back", generations=stuck, waited_seconds=HAND_BACK_SECONDS, redelivered="after ack_wait"
            )
        return num_held

    async def drop_ended(self) -> None:
        """Stop sampling for episodes that ended meanwhile: nobody waits for their tokens."""
        for held in list(self._held.values()):
            if await self._is_over(held.request):
                held.episode_ended = True
                await self._interrupt(held.request_id)

    async def handle(self, delivery: Delivery) -> None:
        """One delivery. Ends it by exactly one of ack, nak, term, unless somebody else claimed the generation."""
        task = asyncio.current_task()
        assert task is not None
        self._handling.add(task)
        pings = asyncio.create_task(keep_alive(delivery))
        try:
            await self._handle(delivery)
        finally:
            pings.cancel()
            self._handling.discard(task)

    async def _handle(self, delivery: Delivery) -> None:
        try:
            request = await self._inbox.open(delivery)
            if not isinstance(request, GenerationRequested):
                raise MalformedMessage(f"{delivery.subject}: expected a GenerationRequested, got {type(request).__name__}")
            verdict = await self._judge(request, is_first=delivery.num_delivered == 1)
            await _end(delivery, verdict)
        except BadInput as wrong:
            await self._inbox.bury(delivery, str(wrong))
        except Unavailable as wrong:
            log.warning("generation.delayed", subject=delivery.subject, reason=str(wrong))
            await delivery.nak(LATER_SECONDS)
        except Exception as wrong:
            await self._count_failure(delivery, wrong)

    async def _judge(self, request: GenerationRequested, *, is_first: bool) -> Verdict:
        if await self._is_over(request):
            return Verdict.DONE
        if request.min_weights_version > self._engine.weights_version:
            self._on_weights_wanted()
            return Verdict.LATER
        prompt = await self._prompts.prompt_of(request)
        history = History() if is_first else await read_history(self._bus, self._speaker, request)
        for _ in range(MAX_CLAIMS):
            if not self._accepting:
                return Verdict.BACK
            try:
                return await self._carry_out(request, prompt, history)
            except ClaimRefused:
                history = await read_history(self._bus, self._speaker, request)
        return Verdict.LATER

    async def _carry_out(self, request: GenerationRequested, prompt: Int32s, history: History) -> Verdict:
        limit = self._engine.max_context_tokens
        decision = decide(request, history, prompt_tokens=len(prompt), max_context_tokens=limit)
        if isinstance(decision, AckOnly):
            return Verdict.DONE
        nonce = secrets.token_hex(6)
        held = Held(request, f"{request.generation}.{nonce}")
        writer = self._writer(held, history, nonce)
        self._held[held.request_id] = held
        try:
            return await self._sample_and_say(held, writer, prompt + history.token_ids, decision)
        except SequenceMismatch:
            if not writer.claimed:
                raise ClaimRefused from None
            log.info("generation.lost", generation=request.generation, episode=request.episode, reason="claimed by another")
            return Verdict.LOST
        finally:
            writer.cancel()
            del self._held[held.request_id]
            if writer.num_said:
                self._failures.pop(request.generation, None)

    def _writer(self, held: Held, history: History, nonce: str) -> SegmentWriter:
        def stop_sampling() -> None:
            task = asyncio.create_task(self._interrupt(held.request_id))
            self._interrupts.add(task)
            task.add_done_callback(self._interrupts.discard)

        return SegmentWriter(
            self._speaker,
            held.request,
            history,
            worker=self._worker,
            nonce=nonce,
            pace=self._pace,
            on_failure=stop_sampling,
        )

    async def _sample_and_say(self, held: Held, writer: SegmentWriter, ids: Int32s, decision: EndNow | Continue) -> Verdict:
        if isinstance(decision, EndNow):
            end: GenerationFinish | None = decision.finish
        else:
            sampled: list[int] = []
            end = await self._sample(held, writer, ids, decision.max_tokens, sampled)
            ids += Int32s(sampled)
        if held.episode_ended:
            return Verdict.DONE  # nobody waits for it; what is unsaid was never sampled
        await writer.finish(end)
        if end is None:
            return Verdict.BACK
        self._prompts.remember(held.request, ids)
        return Verdict.DONE

    async def _sample(
        self, held: Held, writer: SegmentWriter, ids: Int32s, max_tokens: int, sampled: list[int]
    ) -> GenerationFinish | None:
        """Feed the writer from the engine; returns why it ended. None: it must go on elsewhere."""
        if not self.num_sampling:
            self._note(0)
        self.num_sampling += 1
        try:
            async with aclosing(self._chunks(held, ids, max_tokens)) as chunks:
                async for chunk in chunks:
                    writer.put(chunk)
                    sampled.extend(chunk.token_ids)
                    self._note(len(chunk.token_ids))
                    if chunk.finish is not None or writer.failed:
                        return None if chunk.finish is None else _ENDS.get(chunk.finish)
        except EngineError as death:
            self._accepting = False  # what comes back must not come here
            self._on_engine_death(death)
        finally:
            self.num_sampling -= 1
        return None

    def _chunks(self, held: Held, ids: Int32s, max_tokens: int) -> AsyncGenerator[Chunk, None]:
        """The engine's iterator as what the protocol promises it to be: one that can be closed."""
        chunks = self._engine.generate(held.request_id, list(ids), _params(held.request, max_tokens))
        return cast("AsyncGenerator[Chunk, None]", chunks)

    def _note(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        self.last_progress_at = asyncio.get_running_loop().time()

    async def _interrupt(self, request_id: str) -> None:
        with suppress(EngineError):  # a dead engine samples nothing
            await self._engine.interrupt(request_id)

    async def _is_over(self, request: GenerationRequested) -> bool:
        return await self._speaker.first(EpisodeEnded, request.run, shard=request.shard, episode=request.episode) is not None

    async def _count_failure(self, delivery: Delivery, wrong: Exception) -> None:
        generation = delivery.subject.rpartition(".")[2]
        failures = self._failures[generation] = self._failures.get(generation, 0) + 1
        log.error("generation.failed", subject=delivery.subject, failures=failures, exc_info=wrong)
        if failures < MAX_ATTEMPTS:
            await delivery.nak(RETRY_SECONDS)
            return
        del self._failures[generation]
        await self._inbox.bury(delivery, f"failed {failures} times without a new token: {type(wrong).__name__}: {wrong}")


async def _end(delivery: Delivery, verdict: Verdict) -> None:
    match verdict:
        case Verdict.DONE:
            await delivery.ack()
        case Verdict.BACK:
            await delivery.nak()
        case Verdict.LATER:
            await delivery.nak(LATER_SECONDS)
        case Verdict.LOST:
            pass


def _params(request: GenerationRequested, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=request.sampling.temperature,
        top_p=request.sampling.top_p,
        max_tokens=max_tokens,
        stop_token_ids=request.stop_token_ids,
        seed=request.seed,
    )
