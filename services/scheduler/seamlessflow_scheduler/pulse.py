"""Which processes have fallen silent, long before their presence expires. Pure.

A presence is renewed under a new revision each time. Only the time in which the bucket was really looked at counts, so a
scheduler or server that was away for a while takes nobody for dead: all have their time again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Name = tuple[str, str]
"""Node and service."""
BLIND_SECONDS = 1.5
"""Longest time between two looks that still counts as watching."""


@dataclass
class Pulse:
    """Fed with the revisions of all presences at a time."""

    quiet_seconds: float
    _seen: dict[Name, tuple[int, float]] = field(default_factory=dict)
    """By process: its newest revision, and since when it was that."""
    _looked_at: float = 0.0

    def observe(self, revisions: Mapping[Name, int], now: float) -> frozenset[Name]:
        """Processes that did not renew for ``quiet_seconds``."""
        blind = not 0 <= now - self._looked_at <= BLIND_SECONDS
        before, self._looked_at = self._seen, now
        self._seen = {}
        for process, revision in revisions.items():
            known, since = before.get(process, (revision, now))
            self._seen[process] = (revision, since if known == revision and not blind else now)
        return frozenset(process for process, (_, since) in self._seen.items() if now - since >= self.quiet_seconds)
