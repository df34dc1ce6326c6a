"""How long to wait between tries, and for how long the same trouble has gone on."""

from __future__ import annotations

import asyncio
import time


class Patience:
    """Growing pauses, and how long one and the same trouble has gone on. Durations in seconds."""

    def __init__(self, *, first: float = 0.02, longest: float = 1.0) -> None:
        self._next = first
        self._longest = longest
        self._since = time.monotonic()

    def forget(self) -> None:
        """The trouble changed its kind: count its length from now on."""
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start or the last ``forget``."""
        return time.monotonic() - self._since

    async def pause(self) -> None:
        """Sleep, twice as long each time up to the longest pause."""
        await asyncio.sleep(self._next)
        self._next = min(self._longest, self._next * 2)
