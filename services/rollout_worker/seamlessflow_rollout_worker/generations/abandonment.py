"""Whether anybody still waits for a generation: its episode may have ended, its call may have been abandoned.

Episodes are asked for one by one. Calls are abandoned rarely: one look for all tells whether there are new ones, and only
then each generation asks for its own.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from seamlessflow.bus.base import Bus
from seamlessflow.contracts import CallAbandoned, EpisodeEnded, GenerationRequested
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.runtime import Journal

FRESH_SECONDS = 0.25
"""For how long what one look at all abandoned calls saw is good for everybody."""


@dataclass(frozen=True, slots=True)
class Interest:
    """What a look saw. ``looked_until``: up to which sequence of the journal it is known whether its call was abandoned."""

    is_over: bool = False
    """The episode has ended: nothing of it is worth saying."""
    is_abandoned: bool = False
    """The client of its call is gone: what was sampled is worth keeping, more is not."""
    looked_until: int = 0


class Interests:
    """Looks at one run's journal."""

    def __init__(self, bus: Bus, journal: Journal) -> None:
        self._bus, self._journal = bus, journal
        self._turn = asyncio.Lock()
        self._looked_at = -FRESH_SECONDS
        self._newest: int | None = None
        """Sequence of the call that was abandoned last; 0: there is none. None: nobody has looked yet."""

    async def look(self, request: GenerationRequested, before: Interest | None = None) -> Interest:
        """``before``: what the last look at this generation saw. Raises Unavailable."""
        before, known = before or Interest(), self._newest or 0
        is_asked = not before.is_abandoned and known > before.looked_until
        # Side by side: where any call was ever abandoned, each new generation asks for its own.
        ended, newest, found = await asyncio.gather(
            self.has_ended(request.run, request.shard, request.episode),
            self._newest_abandoned(request.run),
            self._abandoned(request) if is_asked else _nothing(),
        )
        is_abandoned, looked_until = before.is_abandoned or found, known if is_asked else before.looked_until
        if not ended and not is_abandoned and newest > looked_until:  # another one came meanwhile
            is_abandoned, looked_until = await self._abandoned(request), newest
        return Interest(ended, is_abandoned, looked_until)

    @property
    def _is_fresh(self) -> bool:
        return time.monotonic() - self._looked_at < FRESH_SECONDS

    async def has_ended(self, run: str, shard: int, episode: str) -> bool:
        """Whether an episode has ended. Raises Unavailable."""
        return await self._journal.first(EpisodeEnded, run, shard=shard, episode=episode) is not None

    async def _abandoned(self, request: GenerationRequested) -> bool:
        call = {"episode": request.episode, "call": request.generation}
        return await self._journal.first(CallAbandoned, request.run, **call) is not None

    async def _newest_abandoned(self, run: str) -> int:
        if self._newest is not None and (self._is_fresh or self._turn.locked()):  # the usual case: no look at all of them
            return self._newest
        async with self._turn:
            if self._newest is None or not self._is_fresh:
                looked_at = time.monotonic()
                record = await self._bus.last(journal_stream(run), subject_filter(CallAbandoned, run=run))
                self._looked_at, self._newest = looked_at, 0 if record is None else record.seq
            return self._newest


async def _nothing() -> bool:
    return False
