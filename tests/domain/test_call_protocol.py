"""The protocol of calls and generations, over a model of the journal: anything may happen between any two steps.

    agent ──▶ journal ──▶ manager queue ──▶ manager ──▶ journal ──▶ generation queue ──▶ two workers ──▶ journal ──▶ …

Deliveries come late, out of order, again, and to a second worker while the first still believes it holds the work;
acknowledgements and answers to appends are lost; manager and workers die at each step and start anew. The decisions are
the real ones: Manager, comparison.replay, and the worker's inflight.History and decide.

Always: at most one answer to a call; segments of a generation follow each other without gap or overlap and never exceed
its budget; an answered call has exactly those tokens. In the end nothing is lost: every call is answered, every episode
judged, and a fresh manager would say the same.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seamlessflow.contracts import (
    CallAnswered,
    CallRequested,
    EpisodeEnded,
    Event,
    GenerationClaimed,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    SamplesReady,
    SegmentSampled,
    claim_of,
)
from seamlessflow.contracts.subjects import address, matches
from seamlessflow.errors import SequenceMismatch
from seamlessflow_rollout_worker.generations.generation_state import (
    AckOnly,
    Continue,
    EndNow,
    History,
    Stretch,
    decide,
    segment_of,
)
from seamlessflow_trajectory_manager.replay_comparison import HEARD, consequences_of, replay
from seamlessflow_trajectory_manager.trajectory.call import End
from seamlessflow_trajectory_manager.trajectory.manager import Manager, NotYet
from tests.domain.trajectory_builders import RUN, Agent, manager, tokenizer, user

WORKERS = st.sampled_from(["w0", "w1"])
PICK = st.integers(min_value=0, max_value=1000)
MAX_TOKENS = 6
SPOKEN_OF = (GenerationClaimed, SegmentSampled, GenerationEnded)
STOP = tokenizer().eos_token_id or 0


@dataclass
class Stored:
    seq: int
    subject: str
    message_id: str
    event: Event


class Journal:
    """Per-subject compare-and-set and de-duplication by id, as JetStream gives them."""

    def __init__(self) -> None:
        self.stored: list[Stored] = []

    def publish(self, event: Event, expected_last_seq: int | None = None) -> int:
        """Raises SequenceMismatch. An append whose acknowledgement was lost is told its sequence when repeated."""
        message = address(event)
        expected = message.expected_last_seq if expected_last_seq is None else expected_last_seq
        compared = [each for each in self.stored if matches(message.expected_subject or message.subject, each.subject)]
        own = next((each for each in self.stored if each.message_id == message.message_id), None)
        if expected is not None and (compared[-1].seq if compared else 0) != expected:
            if own is not None:
                return own.seq
            raise SequenceMismatch(message.message_id)
        if own is not None:
            return own.seq
        self.stored.append(Stored(len(self.stored) + 1, message.subject, message.message_id, event))
        return len(self.stored)

    def of(self, kind: type[Event], **fields: Any) -> list[Any]:
        return [
            each.event
            for each in self.stored
            if isinstance(each.event, kind) and all(getattr(each.event, name) == value for name, value in fields.items())
        ]

    def history(self, generation: str) -> History:
        history = History()
        for each in self.stored:
            if isinstance(each.event, SPOKEN_OF) and each.event.generation == generation:
                history = history.after(each.event, each.seq)
        return history


@dataclass
class Job:
    """A delivery of a generation, in one worker's hands."""

    request: GenerationRequested
    nonce: str
    history: History
    claimed: bool = False
    last_seq: int = 0
    sampled: int = 0
    budget: int = 0
    stopped: bool = False
    at_once: bool = False
    """Its tokens are there before its claim is said: its first segment is the claim as well."""


@dataclass
class Worker:
    jobs: dict[str, Job] = field(default_factory=dict)


class Protocol(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        self.manager: Manager = manager()
        self.to_manager: dict[int, Stored] = {}
        self.to_workers: dict[str, GenerationRequested] = {}
        self.offered = 0
        self.workers: dict[str, Worker] = {"w0": Worker(), "w1": Worker()}
        self.agents = [Agent(f"g0-{number}-0", max_tokens=MAX_TOKENS) for number in range(2)]
        self.conversations: dict[str, dict[str, list[Any]]] = defaultdict(dict)
        self.ended: set[str] = set()
        self.nonces = itertools.count()
        self.tokens = itertools.count(100)

    def publish(self, event: Event, expected_last_seq: int | None = None, *, lost: bool = False) -> int:
        """Store, and let the queues source it. ``lost``: the acknowledgement is, so the bus repeats the message."""
        seq = self.journal.publish(event, expected_last_seq)
        if lost:
            assert self.journal.publish(event, expected_last_seq) == seq
        for stored in self.journal.stored[self.offered :]:
            if isinstance(stored.event, (*HEARD, GenerationClaimed)):
                self.to_manager[stored.seq] = stored
            if isinstance(stored.event, GenerationRequested):
                self.to_workers[stored.event.generation] = stored.event
        self.offered = len(self.journal.stored)
        return seq

    # Agents

    @initialize()
    def begin(self) -> None:
        self.asks(0, 0, "root")

    @rule(which=st.integers(0, 1), pick=PICK, how=st.sampled_from(["continue", "continue", "continue", "parallel", "root"]))
    def asks(self, which: int, pick: int, how: str) -> None:
        """A new conversation, the next turn of one that was answered, or the same request once more."""
        agent = self.agents[which]
        if agent.episode in self.ended or len(self.conversations[agent.episode]) >= 5:
            return
        known = self.conversations[agent.episode]
        answers = {answer.call: answer.message for answer in self.journal.of(CallAnswered, episode=agent.episode)}
        answered = [[*messages, answers[call]] for call, messages in known.items() if answers.get(call)]
        if how == "continue" and answered:
            messages = [*answered[pick % len(answered)], user(f"more {pick % 2}")]
        elif how == "parallel" and known:
            messages = list(known.values())[pick % len(known)]
        else:
            messages = [user(f"root {pick % 2}")]
        call = f"c{which}x{len(known)}"
        known[call] = messages
        self.publish(agent.asks(messages, call=call), lost=pick % 3 == 0)

    @rule(which=st.integers(0, 1), lost=st.booleans(), undelivered=st.booleans())
    def episode_ends(self, which: int, lost: bool, undelivered: bool) -> None:
        agent = self.agents[which]
        calls = self.conversations[agent.episode]
        if agent.episode not in self.ended and calls:
            self.ended.add(agent.episode)
            unread = (next(reversed(calls)),) if undelivered else ()
            self.publish(agent.ends(num_calls=len(calls), undelivered=unread), lost=lost)

    # The manager

    @precondition(lambda self: self.to_manager)
    @rule(pick=PICK, dies_after=st.none() | st.integers(0, 2), ack_lost=st.booleans())
    def manager_handles(self, pick: int, dies_after: int | None, ack_lost: bool) -> None:
        """One of the first few deliveries; perhaps it dies before a consequence is said, perhaps the ack is lost.

        Not one of an episode whose end is older and still waits: the queue gives that first, and it is judged at once, with the
        journal where calls are open.
        """
        waiting = list(self.to_manager.values())
        stored = waiting[pick % min(4, len(waiting))]
        episode = getattr(stored.event, "episode", "")
        ends = [e for e in waiting if isinstance(e.event, EpisodeEnded) and e.event.episode == episode and e.seq < stored.seq]
        stored = ends[0] if ends else stored
        try:
            consequences = self.judge(stored.event)
        except NotYet:
            return None  # handed back
        for number, consequence in enumerate(consequences):
            if dies_after == number:
                return self.manager_restarts()
            with suppress(SequenceMismatch):  # it was said before
                self.publish(consequence, lost=ack_lost)
        if not ack_lost:
            del self.to_manager[stored.seq]
        return None

    def judge(self, event: Event) -> list[Event]:
        """As the service does: where something is missing, the episode's journal is read again."""
        try:
            return self.manager.apply(event)
        except NotYet:
            folded = self.manager.empty()
            for each in self.journal.stored:
                if getattr(each.event, "episode", None) == event.episode and isinstance(each.event, HEARD):  # type: ignore[attr-defined]
                    consequences_of(folded, each.event)
            self.manager.adopt(event.episode, folded)  # type: ignore[attr-defined]
            return self.manager.apply(event)

    @rule(num_rounds=st.integers(2, 7))
    def all_goes_well(self, num_rounds: int) -> None:
        """For a while nothing fails, so that conversations get long."""
        for round_number in range(num_rounds):
            self.advance(round_number)

    @rule()
    def manager_restarts(self) -> None:
        """Only what the journal holds survives; episodes whose end is there are kept as names."""
        self.manager = manager()
        ended = {each.event.episode for each in self.journal.stored if isinstance(each.event, EpisodeEnded)}
        self.manager.mark_ended(ended)
        for each in self.journal.stored:
            if isinstance(each.event, HEARD) and each.event.episode not in ended:
                consequences_of(self.manager, each.event)

    # Workers

    @precondition(lambda self: self.to_workers)
    @rule(name=WORKERS, pick=PICK, lost=st.booleans())
    def worker_takes(self, name: str, pick: int, lost: bool) -> None:
        """A delivery, perhaps of work that the other worker still holds: it was presumed dead."""
        request = list(self.to_workers.values())[pick % len(self.to_workers)]
        if request.generation in self.workers[name].jobs:
            return
        if self.journal.of(EpisodeEnded, episode=request.episode):
            del self.to_workers[request.generation]
            return
        history = self.journal.history(request.generation)
        prompt_tokens = request.parent_tokens + len(request.suffix)
        decision = decide(request, history, prompt_tokens=prompt_tokens, max_context_tokens=2000)
        if isinstance(decision, AckOnly):
            self.to_workers.pop(request.generation)
            return
        job = Job(request, f"n{next(self.nonces)}", history, last_seq=history.last_seq, sampled=len(history.token_ids))
        if isinstance(decision, Continue):
            job.budget = decision.max_tokens
        else:
            assert isinstance(decision, EndNow)
            job.stopped = decision.finish is GenerationFinish.STOP
        job.at_once = pick % 2 == 0
        self.workers[name].jobs[request.generation] = job
        if lost:
            self.claim(name, job, lost=True)

    def claim(self, name: str, job: Job, lost: bool) -> None:
        event = GenerationClaimed(worker=name, start=job.sampled, **self.common(job))
        try:
            job.last_seq = self.publish(event, job.last_seq, lost=lost)
            job.claimed = True
        except SequenceMismatch:
            del self.workers[name].jobs[job.request.generation]  # the history was old: the delivery is decided anew

    @precondition(lambda self: any(worker.jobs for worker in self.workers.values()))
    @rule(name=WORKERS, pick=PICK, count=st.integers(1, 4), stops=st.booleans(), lost=st.booleans(), apart=st.booleans())
    def worker_samples(self, name: str, pick: int, count: int, stops: bool, lost: bool, apart: bool = False) -> None:
        """A claim where there is none yet, then a segment, the last one with the end; ``apart``: that is said later."""
        job = self.job(name, pick)
        if job is None:
            return None
        if not job.claimed and not (job.at_once and job.budget and not job.stopped):
            return self.claim(name, job, lost)
        if job.budget == 0 or job.stopped:
            return self.end(name, job, lost)
        ids = [next(self.tokens) % 97 + 10 for _ in range(min(count, job.budget))]
        if stops:
            ids[-1], job.stopped = STOP, True
        is_last = not apart and (job.stopped or len(ids) == job.budget)
        stretch = Stretch(job.sampled, job.sampled, 0.0, ids, [-1.0] * len(ids))
        claims = None if job.claimed else name
        segment = segment_of(job.request, job.nonce, stretch, self.finish_of(job) if is_last else None, claims)
        try:
            job.last_seq = self.publish(segment, job.last_seq, lost=lost)
        except SequenceMismatch:
            self.workers[name].jobs.pop(job.request.generation)  # presumed dead: neither ack nor nak
            return None
        job.claimed = True
        job.sampled += len(ids)
        job.budget -= len(ids)
        if is_last:
            self.drop(name, job, lost)
        return None

    def end(self, name: str, job: Job, lost: bool) -> None:
        end = GenerationEnded(finish=self.finish_of(job), num_tokens=job.sampled, **self.common(job))
        try:
            self.publish(end, job.last_seq, lost=lost)
        except SequenceMismatch:
            self.workers[name].jobs.pop(job.request.generation)
            return
        self.drop(name, job, lost)

    def finish_of(self, job: Job) -> GenerationFinish:
        return GenerationFinish.STOP if job.stopped else GenerationFinish.LENGTH

    def drop(self, name: str, job: Job, lost: bool) -> None:
        """Its end is stored. ``lost``: the worker dies before it acknowledges."""
        self.workers[name].jobs.pop(job.request.generation)
        if not lost:
            self.to_workers.pop(job.request.generation, None)

    @rule(name=WORKERS)
    def worker_dies_or_hands_back(self, name: str) -> None:
        """What it had not said is lost; its deliveries come again."""
        self.workers[name] = Worker()

    @precondition(lambda self: any(worker.jobs for worker in self.workers.values()))
    @rule(name=WORKERS, pick=PICK)
    def worker_hears_of_the_end(self, name: str, pick: int) -> None:
        """Nobody waits for it any more: acknowledged without an end."""
        job = self.job(name, pick)
        if job is not None and job.request.episode in self.ended:
            self.workers[name].jobs.pop(job.request.generation)
            self.to_workers.pop(job.request.generation, None)

    def job(self, name: str, pick: int) -> Job | None:
        jobs = list(self.workers[name].jobs.values())
        return jobs[pick % len(jobs)] if jobs else None

    def common(self, job: Job) -> dict[str, Any]:
        request = job.request
        ids = {"episode": request.episode, "generation": request.generation, "shard": request.shard}
        return {"run": RUN, "nonce": job.nonce, **ids}

    # What always holds

    @invariant()
    def nothing_is_said_under_a_claim_that_another_one_followed(self) -> None:
        claimed_by: dict[str, str] = {}
        for each in self.journal.stored:
            if isinstance(each.event, SPOKEN_OF):
                if claim_of(each.event) is not None:
                    claimed_by[each.event.generation] = each.event.nonce
                assert claimed_by[each.event.generation] == each.event.nonce

    @invariant()
    def a_call_has_at_most_one_answer(self) -> None:
        answers = [answer.call for answer in self.journal.of(CallAnswered)]
        assert len(answers) == len(set(answers))

    @invariant()
    def segments_follow_each_other_within_the_budget(self) -> None:
        position: dict[str, int] = defaultdict(int)
        for segment in self.journal.of(SegmentSampled):
            assert segment.start == position[segment.generation]
            position[segment.generation] += len(segment.token_ids)
        assert all(count <= MAX_TOKENS for count in position.values())

    @invariant()
    def an_answer_has_exactly_the_accepted_tokens(self) -> None:
        for answer in self.journal.of(CallAnswered):
            if answer.error is None:
                spoken = [each.event for each in self.journal.stored if getattr(each.event, "generation", "") == answer.call]
                (end,) = [End.of(event) for event in spoken if getattr(event, "finish", None) is not None]
                assert end is not None and answer.usage is not None
                assert answer.usage.completion_tokens == end.num_tokens
                assert end.num_tokens == len(self.journal.history(answer.call).token_ids)

    def teardown(self) -> None:
        """Nobody fails any more: all that was asked comes to an end, and the journal says what a fresh manager says."""
        self.drain()
        for which in range(2):
            self.episode_ends(which, lost=False, undelivered=False)
        self.drain()
        calls = self.journal.of(CallRequested)
        assert {answer.call for answer in self.journal.of(CallAnswered)} == {call.call for call in calls}
        assert {ready.episode for ready in self.journal.of(SamplesReady)} == {call.episode for call in calls}
        compared = replay(((each.subject, each.event) for each in self.journal.stored), manager())
        assert compared.differences == []
        for ready in self.journal.of(SamplesReady):
            self.check_samples(ready)

    def drain(self) -> None:
        for round_number in range(200):
            if not self.to_manager and not self.to_workers:
                return
            self.advance(round_number)
        raise AssertionError(f"no progress: {self.to_manager} {self.to_workers}")

    def advance(self, number: int) -> None:
        """Everybody does a step, without failures."""
        for pick in range(len(self.to_manager)):
            if self.to_manager:
                self.manager_handles(pick, dies_after=None, ack_lost=False)
        for name in ("w0", "w1"):
            if self.to_workers:
                self.worker_takes(name, number, lost=False)
            if self.workers[name].jobs:
                self.worker_samples(name, number, 3, stops=number % 3 == 1, lost=False)

    def check_samples(self, ready: SamplesReady) -> None:
        """Answered and delivered tokens are trained once; all others are counted."""
        (end,) = self.journal.of(EpisodeEnded, episode=ready.episode)
        before = [each for each in self.journal.stored if each.seq < self.seq_of(end)]
        accepted = [e.event for e in before if isinstance(e.event, SegmentSampled) and e.event.episode == ready.episode]
        assert ready.num_sampled == sum(len(segment.token_ids) for segment in accepted)
        assert sum(sample.num_sampled for sample in ready.samples) == ready.num_sampled - ready.num_undelivered
        generations = {call: list(self.journal.history(call).token_ids) for call in self.conversations[ready.episode]}
        for sample in ready.samples:
            for start, stop in sample.spans:
                assert list(sample.token_ids[start:stop]) in generations.values()

    def seq_of(self, event: Event) -> int:
        return next(each.seq for each in self.journal.stored if each.event is event)


TestCallProtocol = Protocol.TestCase
TestCallProtocol.settings = settings(
    max_examples=100, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
