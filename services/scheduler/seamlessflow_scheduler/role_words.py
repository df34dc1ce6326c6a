"""Saying what leases changed into the journals of runs: in order for each run, and never in the way of another run.

A lease counts once it is written; that its run's journal hears of it is for whoever reads the journal. So a tick waits a
moment for that, and then goes on: a journal that does not answer gets the rest when it does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from seamlessflow.contracts import RoleAssigned
from seamlessflow.errors import SequenceMismatch, Unavailable

log = structlog.get_logger()

PATIENCE_SECONDS = 1.0
"""How long who says something waits until it is stored."""


class RoleWords:
    """``store``: how one is said; as long as it has not returned, what follows for the same run waits."""

    def __init__(self, store: Callable[[RoleAssigned], Awaitable[object]]) -> None:
        self._store = store
        self._due: dict[str, deque[RoleAssigned]] = {}
        self._speaking: dict[str, asyncio.Task[None]] = {}

    async def say(self, event: RoleAssigned) -> None:
        """Returns when it is stored or refused, after PATIENCE_SECONDS, or at once where its journal is behind already."""
        self._due.setdefault(event.run, deque()).append(event)
        if event.run not in self._speaking:
            self._speaking[event.run] = speaking = asyncio.create_task(self._speak(event.run))
            await asyncio.wait((speaking,), timeout=PATIENCE_SECONDS)

    async def end(self) -> None:
        """Say nothing more; what was not said is found by the next leader (``LeaseBook.say_again``)."""
        speaking = [*self._speaking.values()]
        for task in speaking:
            task.cancel()
        await asyncio.gather(*speaking, return_exceptions=True)

    async def _speak(self, run: str) -> None:
        due = self._due[run]
        try:
            while due:
                event = due.popleft()
                try:
                    await self._store(event)
                except (SequenceMismatch, Unavailable) as wrong:  # the lease stands
                    log.warning("lease.unsaid", node=event.node, run=run, epoch=event.epoch, reason=str(wrong))
        finally:
            del self._speaking[run], self._due[run]
