"""The line of optimiser steps that lives: a fold over what trainers say. Pure.

A trainer that starts again begins a new line at its checkpoint; steps after it are abandoned and their groups are free
again. Whatever an earlier line says after that counts for nothing.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from seamlessflow.contracts import BatchReady, StepsCommitted, StepTaken, TrainerStarted


@dataclass(slots=True)
class Steps:
    """``step``: optimiser steps done along the living line."""

    line: int | None = None
    """None: no trainer ever started."""
    step: int = 0
    batch_step: int = 0
    """The newest step for which a batch was said to be ready."""
    in_step: set[str] = field(default_factory=set)
    """Open groups that a step of the living line used."""
    _groups: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Groups of each step that is not committed."""

    @property
    def batch_waits(self) -> bool:
        return self.batch_step > self.step

    def line_began(self, event: TrainerStarted) -> None:
        self._follow(event.line, event.step)

    def batch_ready(self, event: BatchReady) -> None:
        if self._follow(event.line, event.step - 1):
            self.batch_step = max(self.batch_step, event.step)

    def taken(self, event: StepTaken, *, still_open: Container[str]) -> None:
        if self._follow(event.line, event.step - 1) and event.step not in self._groups:
            self._groups[event.step] = event.groups
            self.in_step.update(group for group in event.groups if group in still_open)
            self.step = max(self.step, event.step)

    def committed(self, event: StepsCommitted) -> None:
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
