"""How old a token is: optimiser steps between the weights that sampled it and the weights now.

A version counts as the step it was published at. A resume goes back to a checkpoint and publishes it under a new number;
the versions in between belong to abandoned steps and count as the step the trainer resumed from. Steps only grow along
the line that survives, so that rule is one minimum: a version counts as the lowest step of itself and all later versions.
Pure: fed with (version, step) pairs from the journal, in any order.
"""

from __future__ import annotations

from collections.abc import Iterable

from seamlessflow.errors import BadInput


class VersionSteps:
    """Version to step, along the surviving line."""

    def __init__(self, published: Iterable[tuple[int, int]] = ()) -> None:
        self._published: dict[int, int] = {}
        self._counted: dict[int, int] = {}
        for weights_version, step in published:
            self._published[weights_version] = step
        self._recount()

    def publish(self, weights_version: int, step: int) -> None:
        """A version became known."""
        self._published[weights_version] = step
        self._recount()

    @property
    def newest(self) -> int | None:
        """The highest version so far; None: nothing was ever published."""
        return max(self._published, default=None)

    def step_of(self, weights_version: int) -> int:
        """The step a version counts as. Raises BadInput for a version that nobody published."""
        if weights_version not in self._counted:
            raise BadInput(
                f"a token was sampled by weights version {weights_version}, which this run never published "
                f"(newest: {self.newest}); its age is unknown and nothing of it is trained"
            )
        return self._counted[weights_version]

    def age(self, weights_version: int, current_step: int) -> int:
        """Optimiser steps since, >= 0. Raises BadInput when it would be negative: a token cannot come from the future."""
        age = current_step - self.step_of(weights_version)
        if age < 0:
            raise BadInput(
                f"weights version {weights_version} belongs to step {self.step_of(weights_version)}, but only "
                f"{current_step} steps were done: its tokens come from another line of this run; nothing is trained"
            )
        return age

    def _recount(self) -> None:
        lowest: int | None = None
        for weights_version in sorted(self._published, reverse=True):
            step = self._published[weights_version]
            lowest = step if lowest is None else min(lowest, step)
            self._counted[weights_version] = lowest
