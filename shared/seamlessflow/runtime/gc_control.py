"""Control of Python's garbage collector: surviving objects are frozen, so that no full collection stops a service.

A full collection walks all objects that may be part of a cycle. The trees of 10,000 open episodes have a million of them, a
scheduler's picture of a run with 100,000 has as many, all alive: a walk takes half a second without answers and
finds nothing. So survivors are frozen: reference counting still frees them, but cycles among them stay. Users must therefore
make no lasting cycles: neither a tree nor the picture of a run is in one, and leaving a shard or a run drops the references
to it.
"""

from __future__ import annotations

import gc

EVERY_EVENTS = 2000
"""Objects of so many events are walked in about a millisecond."""


class GcControl:
    """Freezes survivors every so many events. The first event freezes too: the objects before it are the fold of a journal."""

    def __init__(self, every_events: int = EVERY_EVENTS) -> None:
        self._every_events, self._num_events = every_events, 0

    def tick(self) -> None:
        """One more event was handled."""
        if self._num_events % self._every_events == 0:
            gc.collect(1)  # cycles of tasks and exceptions are young
            gc.freeze()
        self._num_events += 1
