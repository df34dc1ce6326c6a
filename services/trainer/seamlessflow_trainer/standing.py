"""Where the learner stands: exactly at a step, or somewhere in between. Pure.

    exactly at n ──begin──▶ in between ──weights of n + 1 published, StepTaken said──▶ exactly at n + 1
                                └──────given up, and nothing was changed──────▶ exactly at n

A checkpoint is written only of a learner that stands exactly at a step: of any other one nobody could say what it holds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Standing:
    """``step``: optimiser steps done, published and said along this line."""

    step: int
    _is_between: bool = False

    @property
    def exact(self) -> int | None:
        """The step the learner stands exactly at. None: a step began, and did not come to an end of either kind."""
        return None if self._is_between else self.step

    def begin(self) -> None:
        """From here on the learner may change."""
        self._is_between = True

    def undone(self) -> None:
        """The step was given up before anything was changed."""
        self._is_between = False

    def taken(self) -> None:
        """The step that began is learned, its weights are published and it was said."""
        assert self._is_between, "a step was taken that never began"
        self.step += 1
        self._is_between = False


def step_to_keep(standing: Standing, *, committed_step: int) -> int | None:
    """The step to commit before leaving; None: there is nothing to keep, or it cannot be kept."""
    if standing.exact is None or standing.exact <= committed_step:
        return None
    return standing.exact
