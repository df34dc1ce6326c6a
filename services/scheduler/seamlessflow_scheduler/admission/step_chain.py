"""The living line of optimiser steps: a fold over the events of trainers. Pure.

A trainer that starts again begins a new line at its checkpoint; steps after it are abandoned and their groups are free
again. Later events of an earlier line count for nothing.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from seamlessflow.contracts import BatchReady, StepsCommitted, StepTaken, TrainerStarted


@dataclass(slots=True)
class StepChain:
    """``step``: optimiser steps done along the living line."""

    line: int | None = None
    """None: no trainer ever started."""
    step: int = 0
    batch_step: int = 0
    """The newest step that has a BatchReady."""
    in_step: set[str] = field(default_factory=set)
    """Open groups that a step of the living line used."""
    _groups: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Groups of each step that is not committed."""

    @property
    def batch_waits(self) -> bool:
        """Whether a batch is ready that no step has used."""
        return self.batch_step > self.step

    def line_began(self, event: TrainerStarted) -> None:
        """A trainer began a line at its checkpoint."""
        self._follow(event.line, event.step)

    def batch_ready(self, event: BatchReady) -> None:
        """A batch of the living line is ready."""
        if self._follow(event.line, event.step - 1):
            self.batch_step = max(self.batch_step, event.step)

    def taken(self, event: StepTaken, *, still_open: Container[str]) -> None:
        """A step used its groups. ``still_open``: groups that are not closed yet."""
        if self._follow(event.line, event.step - 1) and event.step not in self._groups:
            self._groups[event.step] = event.groups
            self.in_step.update(group for group in event.groups if group in still_open)
            self.step = max(self.step, event.step)

    def committed(self, event: StepsCommitted) -> None:
        """Steps of the living line are final."""
        if event.line == self.line:
            for step in [step for step in self._groups if step <= event.step]:
                del self._groups[step]  # they are closed by GroupTrained, and can no longer be abandoned

    def _follow(self, line: int, step: int) -> bool:
        """Go over to a newer line that begins after ``step``; False for an abandoned line."""
        if self.line is not None and line <= self.line:
            return line == self.line
        self.line, self.step, self.batch_step = line, step, 0
        for abandoned in [each for each in self._groups if each > step]:
            self.in_step.difference_update(self._groups.pop(abandoned))
        return True
