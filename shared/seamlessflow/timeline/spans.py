"""What a picture of a fleet is made of: spans of nodes, series under them, the steps. From a journal or from a simulator.

Times are seconds on one clock, whichever: Unix time of a journal, or virtual time. Pictures count from ``Lanes.origin``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil, floor


class SpanKind(StrEnum):
    """What a node's device did."""

    ROLLOUT = "rollout"
    """It sampled."""
    WAITING = "rollout-waiting"
    """Held by the rollout-worker, with nothing to sample."""
    HELD = "rollout-held"
    """Held by the rollout-worker; whether it sampled is not known (the journal does not name the process)."""
    TRAIN = "train"
    """Held by the trainer, and a step was in progress."""
    TRAIN_WAITING = "train-waiting"
    """Held by the trainer, with no step in progress, or with one that was never done."""
    HAND_OVER = "hand-over"
    """Between a new role and the moment its service holds the device."""
    LOAD = "load"
    """The same, where no service had held it yet: engines start, weights come."""
    FROZEN = "frozen"
    """The same as idle, but its rollout-worker keeps generations that no other worker may sample meanwhile."""
    IDLE = "idle"
    """Of the run, with nothing to do."""
    AWAY = "away"
    """Not of the run, or without a living process."""


BUSY = (SpanKind.ROLLOUT, SpanKind.TRAIN)
"""What devices are for."""


@dataclass(frozen=True, slots=True)
class Span:
    """What one node did from ``start`` to ``end``, in seconds. Spans of a node never overlap."""

    node: str
    kind: SpanKind
    start: float
    end: float
    reason: str = ""
    """Why it had the role, in the scheduler's words; for people."""
    epoch: int | None = None
    """Of the lease. None: none, or unknown."""
    busy: float = 1.0
    """Of a ROLLOUT span: the share in which it really sampled; pauses shorter than what is told apart are in it."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Series:
    """A figure over time, as the mean of each of equal intervals: ``values[i]`` of ``start + i * width`` to the next."""

    start: float
    width: float
    """Seconds."""
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class TrainStep:
    """One optimiser step that was taken."""

    step: int
    time: float
    """When it was done."""
    staleness_mean: float | None = None
    """Age of its tokens in optimiser steps. None: not known."""
    staleness_max: float | None = None
    weights_version: int | None = None


@dataclass(frozen=True)
class Timeline:
    """Everything a picture shows. All but the spans may be missing; what is missing is left out of it."""

    title: str
    start: float
    end: float
    spans: Sequence[Span]
    steps: Sequence[TrainStep] = ()
    """In order of time."""
    queued: Series | None = None
    """Generations that were asked for and that no worker had."""
    in_flight: Series | None = None
    """Generations that workers had, all nodes together."""
    node_in_flight: Mapping[str, Series] = field(default_factory=dict)
    """The same by node; its rollout is drawn the darker the more there were."""
    versions: Sequence[tuple[float, int]] = ()
    """(time, version) at which weights were published."""
    notes: Sequence[str] = ()
    """What is not known, in words."""
    zero: float | None = None
    """Where axes count from. None: from ``start``. Set in a part that was cut out of something longer."""

    @property
    def origin(self) -> float:
        """The Unix time that is shown as 0."""
        return self.start if self.zero is None else self.zero

    @property
    def nodes(self) -> list[str]:
        """Every node with a span, by name."""
        return sorted({span.node for span in self.spans})

    def part(self, since: float | None, until: float | None) -> Timeline:
        """What was between two moments, in seconds from ``origin``; None: from its beginning, to its end.

        Figures of a part are of all of it. Nothing is left of the spans when there is nothing between the two.
        """
        start = self.start if since is None else max(self.start, self.origin + since)
        end = self.end if until is None else min(self.end, self.origin + until)
        inside = (replace(span, start=max(span.start, start), end=min(span.end, end)) for span in self.spans)
        return replace(
            self,
            start=start,
            end=end,
            zero=self.origin,
            spans=[span for span in inside if span.end > span.start],
            steps=[step for step in self.steps if start <= step.time <= end],
            queued=_part(self.queued, start, end),
            in_flight=_part(self.in_flight, start, end),
            node_in_flight={
                node: part for node, series in self.node_in_flight.items() if (part := _part(series, start, end)) is not None
            },
            versions=[(time, version) for time, version in self.versions if start <= time <= end],
        )


def _part(series: Series | None, start: float, end: float) -> Series | None:
    """The bins that the time between touches."""
    if series is None:
        return None
    first = max(0, floor((start - series.start) / series.width))
    last = max(first, ceil((end - series.start) / series.width))
    return Series(series.start + first * series.width, series.width, series.values[first:last])
