"""How many tokens a journal shows as done in a window, as the simulator counts them too. Pure.

A token counts as far as its work was done in the window, rolled out and trained: what was rolled out ahead of it counts only as
trained, and what piles up behind it does not count at all. ``work_seconds`` does the same for work itself, of the very lengths
that were played; so a window in which they were short by chance is not taken for a fast one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from seamlessflow.contracts import (
    EpisodeStatus,
    Event,
    GenerationClaimed,
    GenerationRequested,
    SamplesReady,
    SegmentSampled,
    StepTaken,
    claim_of,
)

from .timed_cell import Cell
from .workloads import work_of

Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Done:
    """In a window; modelled tokens of the whole fleet."""

    sampled: float
    trained: float
    masked: float
    rollout_share: float
    """Of a token's work, that of rolling it out."""

    @property
    def used(self) -> float:
        """Share of the tokens in steps that were young enough."""
        return self.trained / max(1.0, self.trained + self.masked)

    @property
    def tokens(self) -> float:
        """Never more than were trained; masked ones do not count."""
        worked = self.rollout_share * self.used * self.sampled + (1 - self.rollout_share) * self.trained
        return min(self.trained, worked)


def done_in(cell: Cell, events: Iterable[tuple[Event, float]], window: Window, steps: Iterable[StepTaken]) -> Done:
    """``steps``: those that were taken in the window."""
    scale, metrics = cell.modelled_tokens_per_token, [step.metrics for step in steps]
    return Done(
        sampled=scale * sampled_in(events, window),
        trained=scale * _sum(metrics, "trained_tokens"),
        masked=scale * _sum(metrics, "masked_tokens"),
        rollout_share=work_of(cell.workload, cell.cost).rollout_seconds / _floor_seconds(cell),
    )


def sampled_in(events: Iterable[tuple[Event, float]], window: Window) -> float:
    """Tokens of the data plane that were sampled in a window: those of a segment evenly over the time since the last word of
    its generation."""
    since: dict[str, float] = {}
    tokens = 0.0
    for event, at in events:
        if isinstance(event, GenerationClaimed):
            since[event.generation] = at
        elif isinstance(event, SegmentSampled):
            tokens += len(event.token_ids) * _share_inside(since.get(event.generation, at), at, window)
            since[event.generation] = at
    return tokens


@dataclass(slots=True)
class _Generation:
    episode: str
    prompt: int
    """Modelled tokens, like all here."""
    new: int
    """Of those, the ones that its parent does not have."""
    done: int = 0
    since: float | None = None
    """When it was claimed, or said something last. None: it was never claimed."""


def work_seconds(cell: Cell, events: Iterable[tuple[Event, float]], window: Window, steps: Iterable[StepTaken]) -> float:
    """Node-seconds, at full batches and every context found in a cache, of what was rolled out in the window; never more than
    of what ``steps`` used; and of training that."""
    work, cost, scale = work_of(cell.workload, cell.cost), cell.cost, cell.scale
    generations: dict[str, _Generation] = {}
    of_episode: dict[str, float] = {}
    of_group: dict[str, float] = {}
    lengths: dict[str, int] = {}
    inside = 0.0
    for event, at in events:
        if (claim := claim_of(event)) is not None and (known := generations.get(claim.generation)) is not None:
            if known.since is None:
                seconds = cost.prefill_seconds(known.new)
                inside += seconds * (window[0] <= at < window[1])
                of_episode[known.episode] = of_episode.get(known.episode, 0.0) + seconds
            known.since = at
        if isinstance(event, GenerationRequested):
            new = scale.modelled_tokens(len(event.suffix))
            prompt = scale.modelled_tokens(event.parent_tokens) + new
            generations[event.generation] = _Generation(event.episode, prompt, new)
        elif isinstance(event, SegmentSampled) and (known := generations.get(event.generation)) is not None:
            tokens = scale.modelled_tokens(len(event.token_ids))
            seconds = work.decode_seconds(known.prompt + known.done, tokens)
            inside += seconds * _share_inside(at if known.since is None else known.since, at, window)
            of_episode[known.episode] = of_episode.get(known.episode, 0.0) + seconds
            known.done, known.since = known.done + tokens, at
        elif isinstance(event, SamplesReady) and event.status is EpisodeStatus.COMPLETED:
            group = event.origin.group
            lengths[group] = lengths.get(group, 0) + sum(len(sample.token_ids) for sample in event.samples)
            of_group[group] = of_group.get(group, 0.0) + of_episode.get(event.episode, 0.0)
    used = trained = 0.0
    for step in steps:
        used += sum(of_group.get(group, 0.0) for group in step.groups)
        trained += cost.train_seconds(scale.modelled_tokens(sum(lengths.get(group, 0) for group in step.groups)))
    return min(inside, used) + trained


def _floor_seconds(cell: Cell) -> float:
    """Node-seconds that one episode takes at least, its share of a step's fixed part included."""
    work = work_of(cell.workload, cell.cost)
    fixed = cell.cost.train_fixed / (cell.groups_per_step * cell.workload.group_size)
    return work.rollout_seconds + work.train_seconds + fixed


def _sum(metrics: Iterable[Mapping[str, float]], name: str) -> float:
    return sum(each[name] for each in metrics)


def _share_inside(since: float, until: float, window: Window) -> float:
    """Of the time between two moments, how much lies in the window; of none at all, whether it does."""
    if until <= since:
        return float(window[0] <= until < window[1])
    return max(0.0, min(until, window[1]) - max(since, window[0])) / (until - since)
