"""How many tokens a journal shows as done in a window, as the simulator counts them too. Pure.

A token counts as far as its work was done in the window, rolled out and trained: what was rolled out ahead of it counts only as
trained, and what piles up behind it does not count at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from seamlessflow.contracts import Event, GenerationClaimed, SegmentSampled, StepTaken

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
    def tokens(self) -> float:
        """Never more than were trained; masked ones do not count."""
        used = self.trained / max(1.0, self.trained + self.masked)
        worked = self.rollout_share * used * self.sampled + (1 - self.rollout_share) * self.trained
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


def bound_throughput(cell: Cell) -> float:
    """Tokens a second that all nodes could roll out and train at most, of this workload as it is at the run's start."""
    return cell.nodes * work_of(cell.workload, cell.cost).sampled * cell.episode_scale / _floor_seconds(cell)


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
