"""An agent's own time: what counts against its deadline. Pure but for the clock it is given.

    running ──first call asked──▶ standing still ──last call answered──▶ running

While at least one of its calls waits for an answer, it is the system's time and not the agent's: the device may be lent to
training, a service may be restarting. So that nothing lives for ever, all time together is limited as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_OVERALL_FACTOR = 10.0
MIN_OVERALL_SECONDS = 1800.0


def overall_seconds(deadline_seconds: float) -> float:
    """How long an agent with this deadline may live in all, waiting included."""
    return max(MAX_OVERALL_FACTOR * deadline_seconds, MIN_OVERALL_SECONDS)


class OwnTime:
    """Counts seconds while no call waits. ``now``: seconds of a clock that never goes back."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._num_waiting = 0
        self._counted = 0.0
        self._since = now()

    @property
    def is_running(self) -> bool:
        return self._num_waiting == 0

    @property
    def seconds(self) -> float:
        """Counted so far."""
        return self._counted + (self._now() - self._since if self.is_running else 0.0)

    def call_asked(self) -> None:
        self._counted = self.seconds
        self._num_waiting += 1

    def call_over(self) -> None:
        """Answered, refused or given up; once for each ``call_asked``."""
        self._num_waiting -= 1
        if self.is_running:
            self._since = self._now()
