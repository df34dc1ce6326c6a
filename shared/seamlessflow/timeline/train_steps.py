"""Steps of the trainer: when each was in progress, and how old its tokens were. Pure.

In progress: from BatchReady to StepTaken of the same step and line. One that was begun and never taken (its trainer died or
gave it up) was not in progress, unless it is the last thing that is known of a run that goes on. What a trainer publishes
after a newer line was claimed or began is passed over.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from seamlessflow.contracts import BatchReady, SamplesReady, StepTaken
from seamlessflow.errors import BadInput
from seamlessflow.weights.staleness import VersionSteps

from .spans import TrainStep

Interval = tuple[float, float]


class TrainStepsFold:
    """A fold of the trainer's events, and of the samples where those leave ages out."""

    def __init__(self) -> None:
        self.taken: list[TrainStep] = []
        self.versions: list[tuple[float, int]] = []
        self._intervals: list[Interval] = []
        self._ready: tuple[int, int, float] | None = None
        """Line, step and time of the newest batch without its step."""
        self._line = 0
        self._steps = VersionSteps()
        self._group_versions: dict[str, Counter[int]] = {}

    def published(self, weights_version: int, step: int, time: float) -> None:
        """Weights of a step were published."""
        self._steps.publish(weights_version, step)
        self.versions.append((time, weights_version))

    def sampled(self, event: SamplesReady) -> None:
        """Whose tokens a group has, by version."""
        versions = self._group_versions.setdefault(event.origin.group, Counter())
        for sample in event.samples:
            for version, count in sample.versions:
                versions[version] += count

    def closed(self, group: str) -> None:
        """A group was trained or dropped: its versions are forgotten."""
        self._group_versions.pop(group, None)

    def began_line(self, line: int) -> None:
        """A line was claimed or began: no step of an older one is in progress, or will be."""
        if line > self._line:
            self._line, self._ready = line, None

    def ready(self, event: BatchReady, time: float) -> None:
        """A step began, unless an older line began it."""
        if event.line >= self._line:
            self._line, self._ready = event.line, (event.line, event.step, time)

    def over(self) -> None:
        """No step is in progress."""
        self._ready = None

    def took(self, event: StepTaken, time: float) -> None:
        """A step ended, unless an older line took it."""
        if event.line < self._line:
            return
        if self._ready is not None and self._ready[:2] == (event.line, event.step):
            self._intervals.append((self._ready[2], time))
            self._ready = None
        mean, oldest = event.metrics.get("staleness_mean"), event.metrics.get("staleness_max")
        if mean is None or oldest is None:
            mean, oldest = self._ages(event)
        self.taken.append(TrainStep(event.step, time, mean, oldest, event.weights_version))

    def in_progress(self, end: float) -> list[Interval]:
        """When a step was, in order; one that goes on lasts until ``end``."""
        return [*self._intervals, *([(self._ready[2], end)] if self._ready is not None else [])]

    def _ages(self, event: StepTaken) -> tuple[float | None, float | None]:
        """Mean and oldest, in steps, of the group's tokens; None: no token of it is known."""
        ages: Counter[int] = Counter()
        for group in event.groups:
            for version, count in self._group_versions.get(group, Counter()).items():
                with suppress(BadInput):  # the trainer masks what no version explains
                    ages[self._steps.age(version, event.step - 1)] += count
        if not ages:
            return None, None
        return sum(age * count for age, count in ages.items()) / ages.total(), float(max(ages))
