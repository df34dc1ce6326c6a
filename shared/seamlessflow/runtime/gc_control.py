"""Python's garbage collector, kept from stopping everything.

A full collection walks all objects that may be part of a cycle. The trees of 10,000 open episodes have a million of them, a
scheduler's picture of a run with 100,000 has as many, all alive: a walk takes half a second, in which nobody is answered, and
finds nothing. So what has survived for a while is taken out of the collector's sight; it goes as ever when nobody refers to it
any more, and only cycles in it stay. So whoever uses it makes no lasting cycles: a tree is in none, nor is the picture of a
run, and who leaves a shard or a run drops what refers to it.
"""

from __future__ import annotations

import gc

EVERY_EVENTS = 2000
"""Objects of so many events are walked in about a millisecond."""


class GcControl:
    """Counts events. The first one settles too: what was there before is the fold of a journal."""

    def __init__(self, every_events: int = EVERY_EVENTS) -> None:
        self._every_events, self._num_events = every_events, 0

    def tick(self) -> None:
        """One more event was handled."""
        if self._num_events % self._every_events == 0:
            gc.collect(1)  # cycles of tasks and exceptions are young
            gc.freeze()
        self._num_events += 1
