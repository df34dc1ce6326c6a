"""An agent's own time, which alone counts against its deadline. Pure but for the clock it is given.

    running ──first call asked──▶ standing still ──last call answered──▶ running

While one of its calls waits for an answer, its time stands still: the device may be lent to training, a service may be
restarting. Total time is limited as well, so that no agent lives for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any

LOOK_SECONDS = 0.25
"""How often a clock that stands still is checked."""
MAX_OVERALL_FACTOR = 10.0
MIN_OVERALL_SECONDS = 1800.0


def overall_seconds(deadline_seconds: float) -> float:
    """How long an agent with this deadline may live in all, waiting included."""
    return max(MAX_OVERALL_FACTOR * deadline_seconds, MIN_OVERALL_SECONDS)


class UsedUp(StrEnum):
    """The time limit that was reached."""

    OWN = "own"
    """The agent's own time."""
    OVERALL = "overall"
    """Total time, waiting for answers included."""


class OwnTime:
    """Counts seconds while no call waits. ``now``: seconds of a clock that never goes back."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._num_waiting = 0
        self._counted = 0.0
        self._since = now()

    @property
    def is_running(self) -> bool:
        """Whether no call waits."""
        return self._num_waiting == 0

    @property
    def seconds(self) -> float:
        """Own time so far."""
        return self._counted + (self._now() - self._since if self.is_running else 0.0)

    def call_asked(self) -> None:
        """One more call waits for its answer."""
        self._counted = self.seconds
        self._num_waiting += 1

    def call_over(self) -> None:
        """Answered, refused or given up; once for each ``call_asked``."""
        self._num_waiting -= 1
        if self.is_running:
            self._since = self._now()


async def until(
    ends: Collection[asyncio.Future[Any]], time_of_its_own: OwnTime, *, own_seconds: float, overall_seconds: float
) -> UsedUp | None:
    """Wait for one of ``ends``, both limits counting from now. None: one is done; else which limit was reached before."""
    used_before, began = time_of_its_own.seconds, time.monotonic()
    while not any(end.done() for end in ends):
        own = own_seconds - (time_of_its_own.seconds - used_before)
        overall = overall_seconds - (time.monotonic() - began)
        if own <= 0:
            return UsedUp.OWN
        if overall <= 0:
            return UsedUp.OVERALL
        patience = min(overall, own if time_of_its_own.is_running else max(own, LOOK_SECONDS))
        await asyncio.wait(ends, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    return None
