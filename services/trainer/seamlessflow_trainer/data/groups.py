"""Groups from samples: who is missing, which groups can be trained, which must be dropped, and what may be acknowledged.

    heard ──▶ open ──last member is final──▶ ready ──taken for a step──▶ taken ──checkpoint durable──▶ closed
                          └─────failed, zero variance─────▶ (say GroupDropped) ──▶ closed
                                                   ready ──stale──▶ (say GroupDropped) ──▶ closed

Samples may come twice, late, and in any order; the judgement is the same. A member is final by ``is_final``, so a failed
attempt that will be repeated is not waited for here but not counted either. Pure: no bus, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from seamlessflow.contracts import DropReason, EpisodeStatus, Sample, SamplesReady, is_final
from seamlessflow.errors import BadInput


@dataclass(frozen=True, slots=True)
class TrainingGroup:
    """All members of a group that completed, by index; at least two of them."""

    group: str
    members: tuple[SamplesReady, ...]

    @property
    def rewards(self) -> list[float]:
        return [float(member.reward or 0.0) for member in self.members]

    @property
    def env(self) -> str:
        return self.members[0].origin.env

    @property
    def num_sampled(self) -> int:
        """Tokens in its samples, trained or not."""
        return sum(sample.num_sampled for member in self.members for sample in member.samples)

    @property
    def weights_versions(self) -> set[int]:
        """Every version that sampled a token of it."""
        return {version for member in self.members for sample in member.samples for version, _ in sample.versions}


@dataclass(slots=True)
class _OpenGroup:
    finals: dict[int, SamplesReady] = field(default_factory=dict)
    episodes: set[str] = field(default_factory=set)


class GroupBook:
    """Every group the trainer holds samples of, until it is closed. ``closed``: groups known to be closed already."""

    def __init__(self, *, group_size: int, max_attempts: int, drop_zero_variance: bool, closed: Iterable[str] = ()) -> None:
        self._group_size, self._max_attempts, self._drop_zero_variance = group_size, max_attempts, drop_zero_variance
        self._closed = set(closed)
        self._open: dict[str, _OpenGroup] = {}
        self._ready: dict[str, TrainingGroup] = {}

    def wants(self, samples: SamplesReady) -> bool:
        """Whether this delivery must be held: False for a closed group and for an attempt that another follows."""
        final = is_final(samples.status, samples.origin.attempt, self._max_attempts)
        return final and samples.origin.group not in self._closed

    def is_incomplete(self, group: str) -> bool:
        """Whether members of it are still waited for: it is neither closed nor ready nor taken."""
        known = self._open.get(group)
        return group not in self._closed and (known is None or len(known.finals) < self._group_size)

    def add(self, samples: SamplesReady) -> DropReason | TrainingGroup | None:
        """One wanted SamplesReady. Returns the group's judgement when this was its last member; else None.

        A Group is now ready to be taken. A DropReason is to be said, then the group closed. Each group is judged once.
        """
        known = self._open.setdefault(samples.origin.group, _OpenGroup())
        if samples.episode in known.episodes or samples.origin.index in known.finals:
            return None
        known.episodes.add(samples.episode)
        known.finals[samples.origin.index] = samples
        if len(known.finals) < self._group_size:
            return None
        group = TrainingGroup(samples.origin.group, _completed(known.finals))
        reason = self._objection(group)
        if reason is None:
            self._ready[group.group] = group
        return reason or group

    def _objection(self, group: TrainingGroup) -> DropReason | None:
        if len(group.members) < 2 or group.num_sampled == 0:
            return DropReason.FAILED
        if self._drop_zero_variance and min(group.rewards) == max(group.rewards):
            return DropReason.ZERO_VARIANCE
        return None

    @property
    def ready(self) -> list[TrainingGroup]:
        """Complete groups that wait for a step; the one with the oldest tokens first, then in order of completion."""
        return sorted(self._ready.values(), key=lambda group: min(group.weights_versions))

    def take(self, groups: Sequence[TrainingGroup]) -> None:
        """These go into a step; they stay open until closed."""
        for group in groups:
            del self._ready[group.group]

    def put_back(self, groups: Sequence[TrainingGroup]) -> None:
        """The step did not happen."""
        self._ready = {group.group: group for group in groups} | self._ready

    def close(self, group: str) -> None:
        """The group's end was said: from now on its samples are not wanted."""
        self._closed.add(group)
        self._open.pop(group, None)
        self._ready.pop(group, None)

    def rewards_of(self, group: str) -> list[tuple[str, float]]:
        """(environment, reward) of the members that completed, of a group that is not closed."""
        members = _completed(self._open[group].finals)
        return [(member.origin.env, float(member.reward or 0.0)) for member in members]

    @property
    def held(self) -> list[str]:
        """Groups that samples are held of."""
        return list(self._open)


def _completed(finals: dict[int, SamplesReady]) -> tuple[SamplesReady, ...]:
    by_index = (finals[index] for index in sorted(finals))
    return tuple(m for m in by_index if m.status is EpisodeStatus.COMPLETED and m.reward is not None)


# Whether what a peer sent as samples can be trained at all. Pure.


def check_samples(ready: SamplesReady, *, group_size: int, vocab_size: int) -> None:
    """Raise BadInput that says what is wrong with which sample; nothing of the episode is trained then."""
    if not 0 <= ready.origin.index < group_size:
        raise BadInput(f"episode {ready.episode}: member {ready.origin.index} of a group of {group_size}")
    for number, sample in enumerate(ready.samples):
        problem = _problem(sample, vocab_size)
        if problem:
            raise BadInput(f"episode {ready.episode}, sample {number}: {problem}; nothing of it is trained")


def _problem(sample: Sample, vocab_size: int) -> str | None:
    edges = [edge for span in sample.spans for edge in span]
    if any(start >= end for start, end in sample.spans) or edges != sorted(edges):
        return f"spans must be ascending, disjoint and not empty, got {sample.spans}"
    if edges and not (edges[0] >= 1 and edges[-1] <= len(sample.token_ids)):
        return f"spans must lie in 1..{len(sample.token_ids)} (a sampled token follows a prompt), got {sample.spans}"
    spanned = sum(end - start for start, end in sample.spans)
    versioned = sum(count for _, count in sample.versions)
    if not spanned == len(sample.logprobs) == versioned:
        return f"{spanned} tokens in spans, {len(sample.logprobs)} logprobs and {versioned} versions; all three must agree"
    if any(not 0 <= token < vocab_size for token in sample.token_ids):
        return f"token ids must lie in 0..{vocab_size - 1}; was it made with another model's tokenizer?"
    return None
