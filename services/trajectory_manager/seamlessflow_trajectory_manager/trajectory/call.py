"""One call as far as it got: what was asked, what was sampled for it, how it was answered.

Events are kept only while they are needed: what was asked until a generation was requested for it, segments until they are
a turn of the tree. What was answered is not kept at all, since the turn gives it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from seamlessflow.contracts import (
    CallAnswered,
    CallRequested,
    Float32s,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    Int32s,
    SegmentSampled,
)

from .tree import ForkCause, Run, Turn, join, merge_runs


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a request is needed after its generation was requested; fields as in CallRequested."""

    run: str
    episode: str
    call: str
    tools: str | None
    tool_choice: str | None
    stop: tuple[str, ...]
    stream: bool
    logprobs: bool
    reply: str

    @classmethod
    def of(cls, request: CallRequested, names: dict[str, str]) -> Asked:
        """``names``: those that the calls of an episode share, each to itself, so that it is kept once."""
        return cls(
            run=names.setdefault(request.run, request.run),
            episode=names.setdefault(request.episode, request.episode),
            call=request.call,
            tools=None if request.tools is None else names.setdefault(request.tools, request.tools),
            tool_choice=None if request.tool_choice is None else names.setdefault(request.tool_choice, request.tool_choice),
            stop=request.stop,
            stream=request.stream,
            logprobs=request.logprobs,
            reply=request.reply,
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens sampled in one go; fields as in SegmentSampled."""

    start: int
    token_ids: Int32s
    logprobs: Float32s
    weights_version: int

    @classmethod
    def of(cls, event: SegmentSampled) -> Segment:
        return cls(event.start, event.token_ids, event.logprobs, event.weights_version)


@dataclass(frozen=True, slots=True)
class End:
    """How sampling ended, and the count of tokens until there."""

    finish: GenerationFinish
    num_tokens: int

    @classmethod
    def of(cls, event: SegmentSampled | GenerationEnded) -> End | None:
        """None: it goes on behind this segment."""
        if isinstance(event, GenerationEnded):
            return cls(event.finish, event.num_tokens)
        return None if event.finish is None else cls(event.finish, event.start + len(event.token_ids))


@dataclass(slots=True)
class Call:
    """One call, as far as it got."""

    request: CallRequested | Asked
    """In full until it is planned."""
    is_raw: bool = False
    """A completion without a template."""
    parent: str | None = None
    cause: ForkCause | None = None
    """Why it is a fork. None: it is none."""
    reprefilled_tokens: int = 0
    """What that costs, see forks."""
    prompt_tokens: int = 0
    requested: GenerationRequested | None = None
    """What it led to, until it is a turn of the tree."""
    segments: dict[int, Segment] = field(default_factory=dict)
    """By start; emptied when it is answered."""
    end: End | None = None
    """Until it is answered."""
    finish: GenerationFinish | None = None
    """How it ended. None: it is not answered, or was refused without an end."""
    refusal: CallAnswered | None = None
    """The answer, where it is an error."""
    is_answered: bool = False
    bucket: int | None = None
    """Affinity bucket in which what continues it finds the worker that has its context. None: its own first one."""
    runs: tuple[Run, ...] = ()
    """Of tokens that were sampled and became no turn, once it is answered."""

    def in_order(self) -> list[Segment]:
        return [self.segments[start] for start in sorted(self.segments)]

    def sampled_runs(self) -> tuple[Run, ...]:
        """Weights versions and counts of what was sampled so far and is no turn."""
        return self.runs or merge_runs((each.weights_version, len(each.token_ids)) for each in self.in_order())

    def has_all_until(self, end: End) -> bool:
        """Whether no token before the end is missing."""
        if end.finish is GenerationFinish.REFUSED:  # its tokens are only counted, so they need not fit together
            return sum(len(segment.token_ids) for segment in self.in_order()) >= end.num_tokens
        position = 0
        for segment in self.in_order():
            if segment.start != position:
                return False
            position += len(segment.token_ids)
        return position == end.num_tokens

    def turn(self, suffix: Int32s) -> Turn:
        """The node of the tree that its segments, all there, make."""
        segments = self.in_order()
        return Turn(
            call=self.request.call,
            parent=self.parent,
            suffix=suffix,
            sampled=join(segment.token_ids for segment in segments),
            logprobs=_join(segment.logprobs for segment in segments),
            versions=merge_runs((segment.weights_version, len(segment.token_ids)) for segment in segments),
            cause=self.cause,
            reprefilled_tokens=self.reprefilled_tokens,
        )

    def close(self, finish: GenerationFinish | None, refusal: CallAnswered | None, *, is_turn: bool) -> None:
        """It is answered: drop what is not needed any more."""
        self.runs = () if is_turn else self.sampled_runs()
        self.is_answered, self.finish, self.refusal = True, finish, refusal
        self.segments, self.end = {}, None
        if is_turn:
            self.requested = None
        if isinstance(self.request, CallRequested):
            self.request = Asked.of(self.request, {})


def _join(parts: Iterable[Float32s]) -> Float32s:
    return Float32s.from_bytes(b"".join(part.to_bytes() for part in parts))
