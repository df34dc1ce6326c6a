"""The protocol of one generation: what the journal says of it decides what its holder does next.

    delivered ─▶ fold the subject into a History ─▶ decide ─▶ AckOnly     its end is stored: only the acknowledgement was lost
                                                        ├──▶ EndNow      nothing to sample (any more), its end was never said
                                                        └──▶ Continue    claim, sample the remaining budget, end, acknowledge

The end is said with the last segment, or on its own where nothing is left unsaid; the first segment is the claim as well where
its tokens were there at once. Claim, segments and end are appended to one
subject, each with the sequence of the one before it as expected last. So a refused append after our claim means one thing
only: somebody claimed later, we were presumed dead, and the work is no longer ours (no ack, no nak, no term). The bus tells
a lost acknowledgement apart by itself. A refused *claim* means that the History was old: fold again, decide again.

Always true: tokens of the segments in journal order are the generation's tokens; they never exceed its budget; one
segment holds tokens of one weights version. No clock, no bus: time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from seamlessflow.contracts import (
    Event,
    Float32s,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    Int32s,
    SegmentSampled,
)
from seamlessflow.errors import BadInput


@dataclass(frozen=True, slots=True)
class History:
    """What the journal holds of one generation. ``last_seq`` 0: nothing yet."""

    token_ids: Int32s = field(default_factory=Int32s)
    last_seq: int = 0
    ended: bool = False

    def after(self, event: Event, seq: int) -> History:
        """With one more stored event. Raises BadInput for a gap, which the fence makes impossible."""
        if isinstance(event, SegmentSampled):
            if event.start != len(self.token_ids):
                raise BadInput(
                    f"generation {event.generation} of episode {event.episode}: a segment starts at token {event.start}, "
                    f"but {len(self.token_ids)} were sampled before it (sequence {seq}); it cannot be continued"
                )
            token_ids, ended = self.token_ids + event.token_ids, self.ended or event.finish is not None
            return History(token_ids, seq, ended)
        return replace(self, last_seq=seq, ended=self.ended or isinstance(event, GenerationEnded))


@dataclass(frozen=True, slots=True)
class AckOnly:
    """Its end is in the journal."""


@dataclass(frozen=True, slots=True)
class EndNow:
    """Say the end without sampling."""

    finish: GenerationFinish


@dataclass(frozen=True, slots=True)
class Continue:
    """Sample at most ``max_tokens`` more, behind what is there."""

    max_tokens: int


Decision = AckOnly | EndNow | Continue


def decide(
    request: GenerationRequested,
    history: History,
    *,
    prompt_tokens: int,
    max_context_tokens: int,
    has_stopped: bool = False,
    is_abandoned: bool = False,
) -> Decision:
    """What the holder of a delivery does, given all that was said about its generation.

    has_stopped: its tokens so far hold one of its stop texts. is_abandoned: nobody waits for its call any more; where its
    end is already clear that end is said all the same.
    """
    num_sampled = len(history.token_ids)
    if history.ended:
        return AckOnly()
    if has_stopped or (num_sampled and history.token_ids[num_sampled - 1] in request.stop_token_ids):
        return EndNow(GenerationFinish.STOP)
    budget = request.sampling.max_tokens - num_sampled
    room = max_context_tokens - prompt_tokens - num_sampled
    if room < 1 and not num_sampled:
        return EndNow(GenerationFinish.CONTEXT)
    if min(budget, room) < 1:
        return EndNow(GenerationFinish.LENGTH)
    return EndNow(GenerationFinish.CANCELLED) if is_abandoned else Continue(min(budget, room))


@dataclass(frozen=True, slots=True)
class Pace:
    """When sampled tokens are worth a message: many of them, or a few that have waited, or any that waited long.

    A killed worker loses at most what it has not said: ``longest_seconds`` of one generation.
    """

    many: int = 16
    few: int = 4
    few_seconds: float = 0.1
    longest_seconds: float = 1.0
    is_first_at_once: bool = False
    """The first tokens of an attempt wait for nothing: somebody waits for a sign of life."""

    def seconds_left(self, num_tokens: int, age_seconds: float, *, is_first: bool = False) -> float:
        """How long ``num_tokens`` >= 1 may still wait when the first has waited ``age_seconds``; 0.0: say them now."""
        if num_tokens >= self.many or (is_first and self.is_first_at_once):
            return 0.0
        patience = self.few_seconds if num_tokens >= self.few else self.longest_seconds
        return max(0.0, patience - age_seconds)


STREAMED = Pace(few=1, few_seconds=0.025, longest_seconds=0.025, is_first_at_once=True)
"""While somebody reads along: text is shown of stored tokens only, so this is how it flows. At most 40 messages a second."""


@dataclass(slots=True)
class Stretch:
    """Consecutive tokens of one weights version, not yet said."""

    start: int
    weights_version: int
    first_at: float
    token_ids: list[int]
    logprobs: list[float]


class Unsaid:
    """Tokens between engine and journal, in order, cut where the weights version changes."""

    def __init__(self, start: int, pace: Pace) -> None:
        self._first_start = self._next_start = start
        self._pace = pace
        self._stretches: deque[Stretch] = deque()

    @property
    def num_tokens_ever(self) -> int:
        """Offset behind the last token added."""
        return self._next_start

    def add(self, token_ids: Sequence[int], logprobs: Sequence[float], weights_version: int, now: float) -> None:
        """Append tokens the engine reported at ``now``. Raises ValueError unless both have one length."""
        if len(token_ids) != len(logprobs):
            raise ValueError(f"expected one logprob per token, got {len(token_ids)} tokens and {len(logprobs)} logprobs")
        if not token_ids:
            return
        if not self._stretches or self._stretches[-1].weights_version != weights_version:
            self._stretches.append(Stretch(self._next_start, weights_version, now, [], []))
        self._stretches[-1].token_ids.extend(token_ids)
        self._stretches[-1].logprobs.extend(logprobs)
        self._next_start += len(token_ids)

    def seconds_left(self, now: float) -> float | None:
        """How long until something should be said. None: there is nothing to say. A change of version waits for nothing."""
        if not self._stretches:
            return None
        oldest = self._stretches[0]
        if len(self._stretches) > 1:
            return 0.0
        is_first = oldest.start == self._first_start
        return self._pace.seconds_left(len(oldest.token_ids), now - oldest.first_at, is_first=is_first)

    @property
    def is_empty(self) -> bool:
        return not self._stretches

    def take(self) -> Stretch | None:
        """The oldest stretch, which is then no longer here."""
        return self._stretches.popleft() if self._stretches else None


def segment_of(
    request: GenerationRequested,
    nonce: str,
    stretch: Stretch,
    finish: GenerationFinish | None = None,
    worker: str | None = None,
    bucket: int | None = None,
) -> SegmentSampled:
    """A stretch as the event that makes it count. ``finish`` and ``bucket``: of the last one. ``worker``: of one that is the
    claim, too."""
    return SegmentSampled(
        run=request.run,
        episode=request.episode,
        generation=request.generation,
        shard=request.shard,
        nonce=nonce,
        start=stretch.start,
        token_ids=Int32s(stretch.token_ids),
        logprobs=Float32s(stretch.logprobs),
        weights_version=stretch.weights_version,
        finish=finish,
        worker=worker,
        bucket=bucket,
    )
