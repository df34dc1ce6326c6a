"""When somebody's word that a version cannot be had makes the trainer publish in full. Pure; time is an argument, in seconds.

    missed 23, newest full 20, a step is published        ─▶ 24 is full, unless 20 was a moment ago
    missed 23, newest full 20, no step comes              ─▶ the same weights as 24, in full, at once
    missed 20, which is full itself, no step comes        ─▶ the same weights again, each time after twice as long a rest

Each reader has a rest of its own, until it has a version, whatever steps are taken meanwhile. So one that cannot reach the
store costs some bytes, never every version in full; and one that everybody else waits for (the run's only worker, say, when
a delta was damaged) is neither left to a full version that no step will ever bring, nor to the rest of another.
"""

from __future__ import annotations

from collections.abc import Iterable

from seamlessflow.contracts import WeightsReading

APART = 3
"""Versions from a full one to the next that is full because somebody asked, while steps are taken."""
FIRST_REST_SECONDS = 30.0
LONGEST_REST_SECONDS = 3600.0
"""Between two publications of the same weights for one reader: doubled each time. For others it is the first one."""


class FullAsked:
    """newest_full: the newest version that is loaded by itself; -1: none yet."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._rests: dict[str, tuple[float, float]] = {}
        """By reader: of how many seconds its rest is, and until when."""

    def for_step(self, missed: Iterable[WeightsReading], *, version: int, newest_full: int) -> bool:
        """Whether ``version``, which a step is published as, should be full."""
        missed = self._only(missed)
        self._until = float("-inf")
        return version - newest_full >= APART and any(each.weights_version > newest_full for each in missed)

    def for_now(self, missed: Iterable[WeightsReading], *, newest_full: int, now: float) -> bool:
        """Whether the weights that were published last should be published once more, in full. Yes is taken as done."""
        waiting = {each.reader for each in self._only(missed) if each.weights_version >= newest_full}
        if now < self._until or not any(reader not in self._rests or now >= self._rests[reader][1] for reader in waiting):
            return False
        self._until = now + FIRST_REST_SECONDS
        for reader in waiting:
            seconds = min(2 * self._rests[reader][0], LONGEST_REST_SECONDS) if reader in self._rests else FIRST_REST_SECONDS
            self._rests[reader] = seconds, now + seconds
        return True

    def _only(self, missed: Iterable[WeightsReading]) -> tuple[WeightsReading, ...]:
        """The same; who has taken its word back has a version, and no rest any more."""
        said = tuple(missed)
        readers = {each.reader for each in said}
        self._rests = {reader: rest for reader, rest in self._rests.items() if reader in readers}
        return said
