"""How old a token is: optimiser steps between the weights that sampled it and the weights now.

A version counts as the step it was published at. A resume goes back to a checkpoint and publishes it under a new number;
the versions in between belong to abandoned steps and count as the step the trainer resumed from. Steps only grow along
the line that survives, so that rule is one minimum: a version counts as the lowest step of itself and all later versions.
Pure: fed with (version, step) pairs from the journal, in any order.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from seamlessflow.errors import BadInput


class VersionSteps:
    """Version to step, along the surviving line."""

    def __init__(self, published: Iterable[tuple[int, int]] = ()) -> None:
        self._published: dict[int, int] = {}
        self._counted: dict[int, int] = {}
        self._order: list[int] = []
        for weights_version, step in published:
            self.publish(weights_version, step)

    def __len__(self) -> int:
        """How many versions were published."""
        return len(self._published)

    def publish(self, weights_version: int, step: int) -> None:
        """A version became known."""
        if weights_version not in self._published:
            insort(self._order, weights_version)
        self._published[weights_version] = step
        self._recount(bisect_left(self._order, weights_version))

    @property
    def newest(self) -> int | None:
        """The highest version so far; None: nothing was ever published."""
        return self._order[-1] if self._order else None

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

    def _recount(self, position: int) -> None:
        """From this place to older versions until nothing changes: one look where versions come in order."""
        newer = self._order[position + 1] if position + 1 < len(self._order) else None
        lowest = None if newer is None else self._counted[newer]
        for place in range(position, -1, -1):
            weights_version = self._order[place]
            step = self._published[weights_version]
            lowest = step if lowest is None else min(lowest, step)
            if place != position and self._counted[weights_version] == lowest:
                return
            self._counted[weights_version] = lowest
