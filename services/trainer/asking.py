"""When somebody's word that a version cannot be had makes the trainer publish in full. Pure; time is an argument, in seconds.

    missed 23, newest full 20, a step is published        ─▶ 24 is full, unless 20 was a moment ago
    missed 23, newest full 20, no step comes              ─▶ the same weights as 24, in full, at once
    missed 20, which is full itself, no step comes        ─▶ the same weights again, each time after twice as long a rest

So one reader that cannot reach the store costs some bytes, never every version in full; and one that everybody else waits for
(the run's only worker, say, when a delta was damaged) is not left to a full version that no step will ever bring.
"""

from __future__ import annotations

from collections.abc import Iterable

from seamlessflow.contracts import WeightsReading

APART = 3
"""Versions from a full one to the next that is full because somebody asked, while steps are taken."""
FIRST_REST_SECONDS = 30.0
LONGEST_REST_SECONDS = 3600.0
"""Between two publications of the same weights: doubled each time, forgotten when a step is published."""


class FullAsked:
    """newest_full: the newest version that is loaded by itself; -1: none yet."""

    def __init__(self) -> None:
        self._rest_seconds, self._until = FIRST_REST_SECONDS, float("-inf")

    def for_step(self, missed: Iterable[WeightsReading], *, version: int, newest_full: int) -> bool:
        """Whether ``version``, which a step is published as, should be full."""
        self._rest_seconds, self._until = FIRST_REST_SECONDS, float("-inf")
        return version - newest_full >= APART and any(each.weights_version > newest_full for each in missed)

    def for_now(self, missed: Iterable[WeightsReading], *, newest_full: int, now: float) -> bool:
        """Whether the weights that were published last should be published once more, in full. Yes is taken as done."""
        if now < self._until or not any(each.weights_version >= newest_full for each in missed):
            return False
        self._until, self._rest_seconds = now + self._rest_seconds, min(2 * self._rest_seconds, LONGEST_REST_SECONDS)
        return True
