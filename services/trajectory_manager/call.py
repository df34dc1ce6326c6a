"""One call as far as it got: what was asked, what was sampled for it, what was answered."""

from __future__ import annotations

from dataclasses import dataclass, field

from seamlessflow.contracts import (
    CallAnswered,
    CallRequested,
    Event,
    Float32s,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    SegmentSampled,
)

from .matching import Place
from .tree import Turn, join, merge_runs


@dataclass(slots=True)
class Call:
    """One call, as far as it got."""

    request: CallRequested
    place: Place | None = None
    parent: str | None = None
    is_fork: bool = False
    requested: GenerationRequested | None = None
    prompt_tokens: int = 0
    segments: dict[int, SegmentSampled] = field(default_factory=dict)
    """By start; emptied when they have become a turn of the tree."""
    ended: GenerationEnded | None = None
    answer: CallAnswered | None = None

    @property
    def consequence(self) -> Event | None:
        """What the request itself led to: a generation, or an error at once. None: it waits."""
        return self.requested if self.requested is not None else self.answer

    def in_order(self) -> list[SegmentSampled]:
        return [self.segments[start] for start in sorted(self.segments)]

    def has_all_of(self, ended: GenerationEnded) -> bool:
        """Whether no token of the ended generation is missing."""
        if ended.finish is GenerationFinish.REFUSED:  # its tokens are only counted, so they need not fit together
            return sum(len(segment.token_ids) for segment in self.in_order()) >= ended.num_tokens
        position = 0
        for segment in self.in_order():
            if segment.start != position:
                return False
            position += len(segment.token_ids)
        return position == ended.num_tokens

    def turn(self, requested: GenerationRequested) -> Turn:
        """The node of the tree that its segments, all there, make."""
        segments = self.in_order()
        return Turn(
            call=self.request.call,
            parent=self.parent,
            suffix=requested.suffix,
            sampled=join(segment.token_ids for segment in segments),
            logprobs=Float32s.from_bytes(b"".join(segment.logprobs.to_bytes() for segment in segments)),
            versions=merge_runs((segment.weights_version, len(segment.token_ids)) for segment in segments),
            is_fork=self.is_fork,
        )
