"""Whose tokens are furthest from the trainer's logprobs: from gaps by token to gaps by episode, and from those to nodes.

Samples do not say which worker sampled a token, the journal does: every claim of a generation names its worker, and so it is
asked only when there is something to ask about. An episode that several nodes sampled counts for each by its share of tokens.
Pure. Dimensions: N trained tokens of the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from seamlessflow.contracts import Event, SegmentSampled, claim_of

from .batches import TrainingBatch


@dataclass(frozen=True, slots=True)
class GapSum:
    """Of some tokens: the sum of their gaps, and how many they are; parts of tokens where they are shared."""

    total: float
    num_tokens: float

    @property
    def mean(self) -> float:
        return self.total / self.num_tokens


def episode_gaps(batch: TrainingBatch, gaps_N: Tensor) -> dict[str, GapSum]:
    """By episode, over its tokens of the current version that were computed. Episodes without any are not in it.

    gaps_N: |trainer - engine| of each trained token, NaN where it was not computed.
    """
    counted_N = batch.is_current_N & ~gaps_N.isnan()
    found = {}
    for group, paths in zip(batch.groups, batch.paths, strict=True):
        rest = iter(paths)
        for member in group.members:
            mine = [slice(path.first, path.first + len(path.trained)) for _ in member.samples for path in [next(rest)]]
            counted = [gaps_N[part][counted_N[part]] for part in mine]  # no Python loop per token: steps have millions
            if num_tokens := sum(map(len, counted)):
                found[member.episode] = GapSum(sum(float(each.double().sum()) for each in counted), num_tokens)
    return found


def sampled_by(events: Iterable[Event], weights_version: int) -> Counter[str]:
    """Worker to the tokens it sampled with a version, from what the journal holds of one episode's generations, in order.

    Who sampled none (a segment that only ends a generation has no tokens) is not in it."""
    workers: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for event in events:
        if (claim := claim_of(event)) is not None:
            workers[event.nonce] = claim.worker  # type: ignore[attr-defined] # every event that claims has one
        if isinstance(event, SegmentSampled) and event.weights_version == weights_version and event.nonce in workers:
            counts[workers[event.nonce]] += len(event.token_ids)
    return +counts


def gaps_of(by_episode: Mapping[str, GapSum], shares: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """Mean gap by whoever sampled. shares: by episode, how many tokens each did; without any it counts nowhere."""
    sums: dict[str, GapSum] = {}
    for episode, gap in by_episode.items():
        total = sum(shares.get(episode, {}).values())
        for who, count in shares.get(episode, {}).items():
            before, part = sums.get(who, GapSum(0.0, 0.0)), count / total
            sums[who] = GapSum(before.total + part * gap.total, before.num_tokens + part * gap.num_tokens)
    return {who: each.mean for who, each in sums.items()}
