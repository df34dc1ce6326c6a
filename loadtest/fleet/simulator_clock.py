"""Virtual time: what happens next, and nothing in between. Pure and deterministic."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """Calls functions at their times; those of one time in the order they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._stopped = False

    def at(self, time: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call at ``time``, which is not in the past."""
        self._order += 1
        heappush(self._heap, (max(time, self.now), self._order, call, arguments))

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + seconds, call, *arguments)

    def stop(self) -> None:
        """Nothing is called any more."""
        self._stopped = True

    def run(self, until: float) -> None:
        """Until stopped, until nothing is left to happen, or until a time."""
        while self._heap and not self._stopped and self._heap[0][0] <= until:
            self.now, _, call, arguments = heappop(self._heap)
            self.num_events += 1
            call(*arguments)
