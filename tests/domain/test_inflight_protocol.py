"""One generation under everything that can happen to it: crash, redelivery, zombie, lost acknowledgement, hand-back,
an abandoned call.

    truth     token at offset n of the generation is 100 + n; the stop token stands at ``stop_at`` (beyond the budget: never);
              its stop text is what the two tokens from ``says_stop_at`` on say
    journal   one subject; an append with the wrong expected last sequence stores nothing
    holders   any number of workers that believe to hold the generation, each at its own pace; one begins with a claim, or,
              where tokens were there at once, with a segment that claims

Whatever the order, the journal holds a prefix of the truth, no token twice, at most one end, and the end says the truth; and
nothing is stored under a claim that another one followed.
An engine samples a few tokens at a time, also beyond a stop text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seamlessflow.contracts import (
    Event,
    GenerationClaimed,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    Int32s,
    Sampling,
    SegmentSampled,
    claim_of,
)
from seamlessflow.errors import BadInput, SequenceMismatch
from seamlessflow_rollout_worker.generations.generation_state import AckOnly, Continue, EndNow, History, Pace, Unsaid, decide
from seamlessflow_rollout_worker.generations.segment_writer import Chain
from seamlessflow_rollout_worker.generations.stop_detection import Stopping

STOP_ID, PROMPT_TOKENS = 2, 3
SAME = {"run": "r", "episode": "e-0-0", "generation": "c1", "shard": 0}


def requested(max_tokens: int) -> GenerationRequested:
    return GenerationRequested(
        run="r", episode="e-0-0", generation="c1", tag="rollout", bucket=0, shard=0, suffix=Int32s([7, 8, 9]),
        sampling=Sampling(max_tokens=max_tokens), stop_token_ids=(STOP_ID,), seed=1,
    )  # fmt: skip


def decoded(ids: Sequence[int]) -> str:
    """A letter for each token."""
    return "".join(chr(token) for token in ids)


class Journal:
    """One subject, with its fence."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def append(self, event: Event, expected_last_seq: int) -> int:
        if expected_last_seq != len(self.events):
            raise SequenceMismatch("somebody else was first")
        self.events.append(event)
        return len(self.events)

    def history(self) -> History:
        history = History()
        for seq, event in enumerate(self.events, 1):
            history = history.after(event, seq)
        return history


@dataclass
class Truth:
    max_tokens: int
    stop_at: int
    says_stop_at: int
    room: int

    @property
    def stop_text(self) -> str:
        return decoded((100 + self.says_stop_at, 101 + self.says_stop_at))

    @property
    def is_text_stopped(self) -> bool:
        return self.says_stop_at + 2 <= min(self.max_tokens, self.room, self.stop_at)

    @property
    def tokens(self) -> list[int]:
        limit = min(self.max_tokens, self.room)
        if self.is_text_stopped:
            limit = self.says_stop_at + 2
        return [100 + n for n in range(min(self.stop_at, limit))] + ([STOP_ID] if self.stop_at < limit else [])

    @property
    def finish(self) -> GenerationFinish:
        if self.room < 1:
            return GenerationFinish.CONTEXT
        return GenerationFinish.STOP if self.is_text_stopped or STOP_ID in self.tokens else GenerationFinish.LENGTH


@dataclass
class Holder:
    """A worker as the service is one: it folds, decides, claims, samples, says. ``is_gone``: dead, lost or done."""

    journal: Journal
    truth: Truth
    nonce: str
    history: History
    at_once: bool = False
    """Tokens come before a claim is said."""
    chain: Chain | None = None
    unsaid: Unsaid | None = None
    end: GenerationFinish | None = None
    num_left: int = 0
    stopping: Stopping | None = None
    is_abandoned: bool = False
    is_gone: bool = False
    acked: bool = False
    weights_version: int = 0
    trace: list[str] = field(default_factory=list)

    def claim(self) -> None:
        self.stopping = Stopping([self.truth.stop_text], decoded, {STOP_ID})
        self.stopping.num_kept(self.history.token_ids)
        decision = decide(
            requested(self.truth.max_tokens),
            self.history,
            prompt_tokens=PROMPT_TOKENS,
            max_context_tokens=PROMPT_TOKENS + self.truth.room,
            has_stopped=self.stopping.is_complete,
            is_abandoned=self.is_abandoned,
        )
        if isinstance(decision, AckOnly):
            self.is_gone = self.acked = True
            return
        self.chain = Chain(requested(self.truth.max_tokens), self.history, worker="w", nonce=self.nonce)
        if isinstance(decision, EndNow) or not self.at_once:
            try:
                self.append(self.chain.claim())
            except SequenceMismatch:
                self.begin_again()
                return
        self.unsaid = Unsaid(len(self.history.token_ids), Pace())
        if isinstance(decision, EndNow):
            self.end = decision.finish
        elif isinstance(decision, Continue):
            self.num_left = decision.max_tokens

    def append(self, event: Event) -> None:
        assert self.chain is not None
        self.chain.stored(self.journal.append(event, self.chain.last_seq))

    def begin_again(self) -> None:
        """The claim was refused: read again, decide again. Nothing that was sampled on it was said."""
        self.history, self.nonce = self.journal.history(), f"{self.nonce}x"
        self.chain = self.unsaid = self.end = None

    @property
    def has_begun(self) -> bool:
        return self.unsaid is not None

    def sample(self, count: int) -> None:
        assert self.unsaid is not None and self.stopping is not None
        if self.end is not None:
            return
        first = self.unsaid.num_tokens_ever
        ids = [STOP_ID if n == self.truth.stop_at else 100 + n for n in range(first, first + min(count, self.num_left))]
        if STOP_ID in ids:
            ids, self.end = ids[: ids.index(STOP_ID) + 1], GenerationFinish.STOP
        self.num_left -= len(ids)
        if not self.num_left and self.end is None:
            self.end = GenerationFinish.LENGTH
        kept = ids[: self.stopping.num_kept(ids)]
        if self.stopping.is_complete:
            self.end = GenerationFinish.STOP
        self.unsaid.add(kept, [-1.0] * len(kept), self.weights_version, 0.0)

    def cancel(self) -> None:
        """Its call was abandoned: nothing more is sampled."""
        if self.end is None:
            self.end = GenerationFinish.CANCELLED

    def say_tokens(self) -> None:
        """Everything unsaid, while it is not known whether more comes."""
        end, self.end = self.end, None
        self.publish()
        if self.has_begun:  # else its claim was refused, and the end went with what was sampled on it
            self.end = end

    def publish(self) -> None:
        """Everything unsaid, and the end when there is one, with the last of it; then the acknowledgement."""
        assert self.unsaid is not None and self.chain is not None
        try:
            is_end_said = False
            while (stretch := self.unsaid.take()) is not None:
                end = self.end if self.unsaid.is_empty else None
                self.append(self.chain.segment(stretch, end))
                is_end_said = end is not None
            if is_end_said:
                self.is_gone = self.acked = True
            elif self.end is not None:
                if not self.chain.claimed:  # it ends before anything was sampled
                    self.append(self.chain.claim())
                self.append(self.chain.end(self.end, self.unsaid.num_tokens_ever))
                self.is_gone = self.acked = True
        except SequenceMismatch:
            if not self.chain.claimed:
                self.begin_again()
                return
            self.is_gone = True  # presumed dead: no ack, nak or term


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["deliver", "claim", "sample", "say", "say", "say_tokens", "crash", "new_weights"]),
        st.integers(0, 3),
        st.integers(1, 4),
    ),
    max_size=60,
)


TWO_HOLD_IT = [("deliver", 0, 1), ("claim", 0, 1), ("sample", 0, 1), ("deliver", 0, 2), ("claim", 1, 1), ("sample", 1, 2)]
OPENINGS = st.sampled_from([[], TWO_HOLD_IT])
"""The second was delivered it while the first, which is presumed dead, goes on: one claims, the other begins with a segment."""
TRUTHS = st.builds(Truth, st.integers(1, 12), st.integers(0, 15), st.integers(0, 15), st.integers(0, 15))
GONE_AT = st.one_of(st.none(), st.none(), st.integers(0, 60))
"""Before which action the call is abandoned; None: never."""


REFUSED_BEFORE_ITS_END = [("claim", 0, 1), ("say_tokens", 1, 1), ("crash", 0, 1), ("claim", 0, 1), ("claim", 0, 1)]


@settings(max_examples=300)
@given(OPENINGS, ACTIONS, TRUTHS, GONE_AT)
@example(TWO_HOLD_IT, REFUSED_BEFORE_ITS_END, Truth(2, 1, 0, 2), None)
def test_whatever_happens_the_journal_tells_the_truth_once(opening, actions, truth, gone_at):
    """And a healthy worker that comes last always finishes it, without exceeding the budget."""
    journal, holders = Journal(), []
    for number, (action, which, count) in enumerate(opening + actions):
        if number == gone_at:
            abandon(holders)
        act(action, which, count, journal, holders, truth, nonce=f"n{number}")
        check(journal, truth)
    finish(journal, truth)
    check(journal, truth)
    assert journal.history().ended


@given(st.builds(Truth, st.integers(1, 12), st.just(15), st.integers(0, 5), st.just(15)), st.lists(st.integers(1, 3)))
def test_however_often_it_moves_on_it_ends_with_the_same_token(truth, counts):
    """Each holder samples a few tokens, says them and dies, in the middle of a stop text or before the end of it is said."""
    journal = Journal()
    for number, count in enumerate(counts):
        holder = Holder(journal, truth, f"n{number}", journal.history(), at_once=number % 3 == 0)
        holder.claim()
        if holder.is_gone:
            break
        holder.sample(count)
        holder.end = None if number % 2 else holder.end
        holder.publish()
        check(journal, truth)
    finish(journal, truth)
    check(journal, truth)
    assert journal.history().ended


def act(action: str, which: int, count: int, journal: Journal, holders: list[Holder], truth: Truth, *, nonce: str) -> None:
    if action == "deliver":
        is_first = not holders  # a first delivery is believed to be fresh without reading
        history = History() if is_first else journal.history()
        holders.append(Holder(journal, truth, nonce, history, at_once=count % 2 == 0))
        return
    alive = [holder for holder in holders if not holder.is_gone]
    if not alive:
        return
    holder = alive[which % len(alive)]
    if action == "crash":
        holder.is_gone = True
    elif action == "new_weights":
        holder.weights_version += 1
    elif not holder.has_begun:
        holder.is_abandoned = any(other.is_abandoned for other in holders)
        holder.claim()
    elif action == "sample":
        holder.sample(count)
    elif action == "say_tokens":
        holder.say_tokens()
    else:
        holder.publish()


def abandon(holders: list[Holder]) -> None:
    """All learn of it, those that sample now and those that claim later."""
    for holder in holders:
        holder.is_abandoned = True
        if holder.has_begun:
            holder.cancel()


def finish(journal: Journal, truth: Truth) -> None:
    """The last redelivery, to a worker to which nothing happens."""
    last = Holder(journal, truth, "last", journal.history(), at_once=len(journal.events) % 2 == 0)
    last.claim()
    if not last.is_gone:
        last.sample(100)
        last.publish()
    assert last.acked


def check(journal: Journal, truth: Truth) -> None:
    history = journal.history()  # raises on a gap or an overlap
    assert list(history.token_ids) == truth.tokens[: len(history.token_ids)]
    ends = [event for event in journal.events if getattr(event, "finish", None) is not None]
    assert len(ends) <= 1
    for end in ends:
        assert isinstance(end, SegmentSampled | GenerationEnded)
        assert history.ended and end is journal.events[-1]
        num_tokens = end.num_tokens if isinstance(end, GenerationEnded) else end.start + len(end.token_ids)
        assert num_tokens == len(history.token_ids)
        if end.finish is not GenerationFinish.CANCELLED:
            assert list(history.token_ids) == truth.tokens
            assert end.finish is truth.finish
    claims: list[str] = []
    for event in journal.events:
        claims += [event.nonce] if claim_of(event) is not None else []
        assert event.nonce == claims[-1] and len(set(claims)) == len(claims)
    for segment in journal.events:
        if isinstance(segment, SegmentSampled):
            assert len(segment.token_ids) == len(segment.logprobs) > 0


def test_a_generation_whose_call_is_abandoned_samples_no_more():
    """But an end that its tokens make clear is said as what it is."""
    request, limits = requested(8), {"prompt_tokens": 3, "max_context_tokens": 64, "is_abandoned": True}

    assert decide(request, History(Int32s([100])), **limits) == EndNow(GenerationFinish.CANCELLED)
    assert decide(request, History(), **limits) == EndNow(GenerationFinish.CANCELLED)
    assert decide(request, History(Int32s([100, STOP_ID])), **limits) == EndNow(GenerationFinish.STOP)
    assert decide(request, History(Int32s([100])), **limits, has_stopped=True) == EndNow(GenerationFinish.STOP)
    assert decide(request, History(Int32s(range(100, 108))), **limits) == EndNow(GenerationFinish.LENGTH)
    assert decide(request, History(ended=True), **limits) == AckOnly()


def test_a_stop_text_counts_more_than_a_budget_that_ends_with_it():
    """Its answer is whole."""
    full = History(Int32s(range(100, 108)))

    decision = decide(requested(8), full, prompt_tokens=3, max_context_tokens=64, has_stopped=True)

    assert decision == EndNow(GenerationFinish.STOP)


def test_the_last_segment_ends_the_generation():
    """Whoever is delivered it after that only acknowledges."""
    last = SegmentSampled(
        **SAME, nonce="n", start=0, token_ids=Int32s([100]), logprobs=[-1.0], weights_version=0, finish=GenerationFinish.STOP
    )

    history = History().after(GenerationClaimed(**SAME, worker="w", nonce="n", start=0), 1).after(last, 2)

    assert history == History(Int32s([100]), 2, ended=True)
    assert decide(requested(8), history, prompt_tokens=3, max_context_tokens=64) == AckOnly()


def test_a_gap_in_the_journal_is_refused_with_its_place():
    """The fence makes it impossible; should it ever be there, it is not papered over."""
    late = SegmentSampled(**SAME, nonce="n", start=4, token_ids=Int32s([1]), logprobs=[-1.0], weights_version=0)

    with pytest.raises(BadInput, match="starts at token 4, but 0 were sampled"):
        History().after(late, 1)
