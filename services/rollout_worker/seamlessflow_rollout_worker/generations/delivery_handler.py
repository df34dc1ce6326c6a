"""One delivery of a generation, from the queue to its acknowledgement.

    delivered ─▶ episode ended? ─▶ weights new enough? ─▶ prompt, History ─▶ decide ─▶ claim ∥ sample ─▶ end ─▶ ack
                     │ ack              │ nak, later           │ nak, later                  │
                     ▼                  ▼                      ▼                             ├ interrupted: flush, nak
                                                                                             ├ refused: drop silently
                                                                                             └ engine died: flush, nak, report
    call abandoned ─▶ History ─▶ claim, end CANCELLED ─▶ ack         (while it is sampled: flush first)
    can never be sampled ─▶ end REFUSED ─▶ dead letter

Progress pings go on from the first moment to the last, also while the engine is frozen. A first delivery is taken for a
fresh generation without reading its subject; if that is wrong the claim is refused, and then the subject is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from seamlessflow.bus.base import Bus, Delivery
from seamlessflow.contracts import CallRequested, GenerationEnded, GenerationFinish, GenerationRequested, Int32s, SegmentSampled
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import BadInput, MalformedMessage, SequenceMismatch, Unavailable
from seamlessflow.runtime import EventHandlers, Journal, keep_alive
from seamlessflow.runtime.event_handlers import MAX_ATTEMPTS, RETRY_SECONDS
from seamlessflow_rollout_worker.engines.base import Engine, EngineError
from seamlessflow_rollout_worker.weights.pinned_versions import Keeping, Place

from .abandonment import Interest, Interests
from .context_budget import Contexts
from .generation_attempt import Attempt, ClaimRefused, Verdict
from .generation_state import STREAMED, AckOnly, Continue, History, Pace, decide
from .prompts import Prompts, read_history
from .stop_detection import Texts
from .throughput import Activity

# Ending a generation that can never be sampled, so that its call gets an error instead of waiting for its deadline.


NONCE = "refused"
"""The same for whoever says it: a generation is refused once."""


async def end_refused(bus: Bus, journal: Journal, handlers: EventHandlers, delivery: Delivery) -> None:
    """Say GenerationEnded with REFUSED for a delivery, which may be unreadable; nothing if its end is stored.

    Raises SequenceMismatch when somebody claimed it meanwhile.
    """
    _, run, _, _, _, episode, generation = delivery.subject.split(".")
    shard = await _shard_of(bus, handlers, delivery)
    if shard is None:
        return  # nobody asked for it
    subject = subject_filter(SegmentSampled, run=run, shard=shard, episode=episode, generation=generation)
    last_seq = 0
    lengths: dict[int, int] = {}  # of segments, by their start
    async for record in bus.read(journal_stream(run), filters=(subject,)):
        last_seq = record.seq
        try:
            event = await journal.open(record)
        except BadInput:
            continue  # perhaps the reason why it is refused
        if isinstance(event, GenerationEnded) or (isinstance(event, SegmentSampled) and event.finish is not None):
            return
        if isinstance(event, SegmentSampled):
            lengths.setdefault(event.start, len(event.token_ids))
    end = GenerationEnded(
        run=run,
        episode=episode,
        generation=generation,
        shard=shard,
        nonce=NONCE,
        finish=GenerationFinish.REFUSED,
        num_tokens=sum(lengths.values()),
    )
    await journal.append(end, last_seq)


async def _shard_of(bus: Bus, handlers: EventHandlers, delivery: Delivery) -> int | None:
    """From the request, or where that is unreadable from the subject of its call. None: there is no such call."""
    try:
        request = await handlers.open(delivery)
    except BadInput:
        request = None
    if isinstance(request, GenerationRequested):
        return request.shard
    _, run, _, _, _, episode, generation = delivery.subject.split(".")
    asked = await bus.first(journal_stream(run), subject_filter(CallRequested, run=run, episode=episode, call=generation))
    return None if asked is None else int(asked.subject.split(".")[3])


log = structlog.get_logger()

LATER_SECONDS = 0.5
"""How long a generation rests when its weights or its parent are not there yet."""
MAX_CLAIMS = 3
"""Claims of one delivery that may be refused before it is handed back."""
FLUSH_SECONDS = 2.0
"""How long the device is kept for what was sampled on it to be stored; an unreachable journal gets it later."""
HAND_BACK_SECONDS = 5.0
"""How long handing back may take; what is not back by then comes again after ack_wait."""


class Sampler:
    """Handles deliveries of generations with one engine.

    texts: of the run's model. pace: of generations that nobody reads along with.
    on_engine_death: called when the engine failed; the generation at hand goes back to the queue.
    on_weights_wanted: called when a generation asks for newer weights than the engine's.
    keeping: where episodes keep their weights version, whose generations are sampled here.
    contexts: is told of what the engine holds. owned: this worker's affinity buckets of a work tag.
    has_choice: whether anybody looks at the room that is left; where a run has one bucket, nobody does.
    """

    def __init__(
        self,
        engine: Engine,
        bus: Bus,
        journal: Journal,
        handlers: EventHandlers,
        texts: Texts,
        *,
        worker: str,
        pace: Pace,
        on_engine_death: Callable[[EngineError], None],
        on_weights_wanted: Callable[[], None],
        keeping: Callable[[], Keeping | None] = lambda: None,
        contexts: Contexts | None = None,
        owned: Callable[[str], Sequence[int]] = lambda tag: (),
        has_choice: bool = True,
    ) -> None:
        self.activity = Activity(asyncio.get_running_loop().time)
        self._failures: dict[str, int] = {}
        self._engine, self._bus, self._journal, self._handlers = engine, bus, journal, handlers
        self._worker, self._pace = worker, pace
        self._on_engine_death, self._on_weights_wanted, self._keeping = on_engine_death, on_weights_wanted, keeping
        self._prompts, self._texts, self._interests = Prompts(bus, journal), texts, Interests(bus, journal)
        self._attempts: set[Attempt] = set()
        self._handling: set[asyncio.Task[None]] = set()
        self._contexts, self._owned, self._has_choice = contexts or Contexts(engine.num_slots), owned, has_choice
        self._shards: dict[str, tuple[str, int]] = {}
        """Run and shard of episodes whose contexts are here."""
        self._accepting = True

    @property
    def num_held(self) -> int:
        """Deliveries that are neither acknowledged nor handed back."""
        return len(self._handling)

    def accept(self) -> None:
        """Take deliveries (again), with an engine that samples from now on."""
        self._accepting = True
        self.activity.note(0)

    async def hand_back(self) -> int:
        """Interrupt everything, say what was sampled, nak; returns how many. Until ``accept`` deliveries are nak'ed."""
        self._accepting = False
        num_held = len(self._handling)
        try:
            async with asyncio.timeout(HAND_BACK_SECONDS):
                while self._handling:
                    await asyncio.gather(*(attempt.interrupt() for attempt in self._attempts))
                    if self._handling:
                        await asyncio.wait(set(self._handling), timeout=0.05)
        except TimeoutError:
            stuck = [attempt.request.generation for attempt in self._attempts]
            log.error(
                "generations.not_handed_back", generations=stuck, waited_seconds=HAND_BACK_SECONDS, redelivered="after ack_wait"
            )
        self._contexts.clear()
        return num_held

    async def forget_ended(self) -> None:
        """Ask of episodes that call for nothing whether they have ended: there is room for others then. Raises Unavailable."""
        due = self._contexts.to_look_for(asyncio.get_running_loop().time())
        asked = [(episode, *self._shards[episode]) for episode in due if self._has_choice and episode in self._shards]
        ended = await asyncio.gather(*(self._interests.has_ended(run, shard, episode) for episode, run, shard in asked))
        for (episode, _, _), is_over in zip(asked, ended, strict=True):
            if is_over:
                self._contexts.over(episode)
        self._shards = {episode: where for episode, where in self._shards.items() if self._contexts.holds(episode)}

    async def flush(self) -> None:
        """Store what a frozen engine sampled, so that in the journal, too, its device is idle from here on."""
        flushes = [asyncio.create_task(attempt.flush()) for attempt in self._attempts]
        if flushes:
            _, late = await asyncio.wait(flushes, timeout=FLUSH_SECONDS)
            for flush in late:
                flush.cancel()

    async def drop_unwanted(self) -> None:
        """Stop sampling for episodes that ended and calls that were abandoned meanwhile: nobody waits for more tokens."""
        for attempt in list(self._attempts):
            await attempt.heed(await self._interests.look(attempt.request, attempt.interest))

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
            request = await self._handlers.open(delivery)
            if not isinstance(request, GenerationRequested):
                raise MalformedMessage(f"{delivery.subject}: expected a GenerationRequested, got {type(request).__name__}")
            verdict = await self._judge(request, is_first=delivery.num_delivered == 1)
            await _end(delivery, verdict)
        except BadInput as wrong:
            await self._bury(delivery, str(wrong))
        except Unavailable as wrong:
            log.warning("generation.delayed", subject=delivery.subject, reason=str(wrong))
            await delivery.nak(LATER_SECONDS)
        except Exception as wrong:
            await self._count_failure(delivery, wrong)

    async def _judge(self, request: GenerationRequested, *, is_first: bool) -> Verdict:
        interest = await self._interests.look(request)
        if interest.is_over:
            return Verdict.DONE
        if interest.is_abandoned:
            return await self._claim(request, Int32s(), interest, is_first=is_first)
        if request.min_weights_version > self._engine.weights_version:
            self._on_weights_wanted()
            return Verdict.LATER
        keeping = self._keeping()
        if keeping is not None and keeping.place(request) is Place.ELSEWHERE:
            return Verdict.LATER
        prompt = await self._prompts.prompt_of(request)
        return await self._claim(request, prompt, interest, is_first=is_first)

    async def _claim(self, request: GenerationRequested, prompt: Int32s, interest: Interest, *, is_first: bool) -> Verdict:
        """Decide and carry out, again where a claim was refused. An abandoned one needs no prompt."""
        history = History() if is_first else await read_history(self._bus, self._journal, request)
        for _ in range(MAX_CLAIMS):
            if not self._accepting:
                return Verdict.BACK
            try:
                return await self._attempt(request, prompt, history, interest)
            except ClaimRefused:
                history = await read_history(self._bus, self._journal, request)
        return Verdict.LATER

    async def _attempt(self, request: GenerationRequested, prompt: Int32s, history: History, interest: Interest) -> Verdict:
        stopping = await self._texts.stopping(request, history.token_ids)
        decision = decide(
            request,
            history,
            prompt_tokens=len(prompt),
            max_context_tokens=self._engine.max_context_tokens,
            has_stopped=stopping is not None and stopping.is_complete,
            is_abandoned=interest.is_abandoned,
        )
        if isinstance(decision, AckOnly):
            return Verdict.DONE
        weights_version, keeping = None, self._keeping()
        if keeping is not None and isinstance(decision, Continue):
            place = keeping.place(request)
            if place is Place.ELSEWHERE:  # its version was replaced while its prompt was read
                return Verdict.LATER
            if place is Place.ITS_OWN:
                weights_version = request.weights_version
            else:
                keeping.let_go(request)
        num_tokens = len(prompt) + len(history.token_ids)
        attempt = Attempt(
            request,
            history,
            prompt,
            self._engine,
            self._journal,
            self.activity,
            worker=self._worker,
            pace=STREAMED if request.stream else self._pace,
            stopping=stopping,
            interest=interest,
            weights_version=weights_version,
            bucket=self._contexts.begins(request.episode, request.bucket, num_tokens, self._owned(request.tag)),
            on_engine_death=self._refuse_all,
        )
        self._shards[request.episode] = request.run, request.shard
        self._attempts.add(attempt)
        verdict = Verdict.LOST
        try:
            verdict = await attempt.carry_out(decision)
        finally:
            self._attempts.discard(attempt)
            self._note_context(request, verdict, len(attempt.ids))
            if attempt.num_said:
                self._failures.pop(request.generation, None)
        if verdict is Verdict.DONE and not interest.is_abandoned:  # then its prompt was never worked out
            self._prompts.remember(request, attempt.ids)
        return verdict

    def _note_context(self, request: GenerationRequested, verdict: Verdict, num_tokens: int) -> None:
        if verdict is Verdict.DONE:
            self._contexts.sampled(request.episode, num_tokens, asyncio.get_running_loop().time())
        else:
            self._contexts.left(request.episode)

    def _refuse_all(self, death: EngineError) -> None:
        self._accepting = False  # what is handed back must not come here again
        self._on_engine_death(death)

    async def _count_failure(self, delivery: Delivery, wrong: Exception) -> None:
        generation = delivery.subject.rpartition(".")[2]
        failures = self._failures[generation] = self._failures.get(generation, 0) + 1
        log.error("generation.failed", subject=delivery.subject, failures=failures, exc_info=wrong)
        if failures < MAX_ATTEMPTS:
            await delivery.nak(RETRY_SECONDS)
            return
        del self._failures[generation]
        await self._bury(delivery, f"failed {failures} times without a new token: {type(wrong).__name__}: {wrong}")

    async def _bury(self, delivery: Delivery, reason: str) -> None:
        """The end first, so that nobody waits: killed in between, the delivery comes again."""
        try:
            await end_refused(self._bus, self._journal, self._handlers, delivery)
        except SequenceMismatch:
            log.info("generation.lost", subject=delivery.subject, reason="another worker claimed it later")
            return  # theirs; should they fail as well it comes again
        await self._handlers.dead_letter(delivery, reason)


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
