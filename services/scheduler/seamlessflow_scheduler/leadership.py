"""Leader election: the scheduler that holds and renews one key leads; the others wait.

The key lives in the LEASES bucket under a name with a dot, which no node can have. It only keeps schedulers from doing the
same work twice: should two lead for a moment, leases are compare-and-set and events that exist once are appended once.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from seamlessflow.bus.base import Bus, KeyValue
from seamlessflow.contracts.routes import LEASES_BUCKET
from seamlessflow.errors import Refused, SequenceMismatch

log = structlog.get_logger()

LEADER_KEY = "leader.scheduler"
WAIT_SECONDS = 0.5


class Leadership:
    """The leader key as seen by one process. ``instance``: this process; ``ttl_seconds``: how long the key lives unrenewed."""

    def __init__(self, bus: Bus, instance: str, ttl_seconds: int) -> None:
        self._bus, self._instance, self._ttl_seconds = bus, instance.encode(), ttl_seconds
        self._revision = 0
        self._renewed_at = 0.0

    @property
    def is_certain(self) -> bool:
        """Whether no other scheduler can lead yet: a process that was suspended does not know what happened meanwhile."""
        return time.monotonic() - self._renewed_at < self._ttl_seconds

    async def leader(self) -> str | None:
        """The instance that leads now; None: no scheduler does."""
        entry = await (await self._bucket()).get(LEADER_KEY)
        return None if entry is None else entry.value.decode(errors="replace")

    async def win(self) -> None:
        """Wait until we lead."""
        waited = 0
        while not await self._create():
            if waited % 20 == 0:
                log.info("leadership.awaited", leader=await self.leader())
            waited += 1
            await asyncio.sleep(WAIT_SECONDS)
        log.info("leadership.won")

    async def keep(self) -> None:
        """Renew until cancelled. Raises Refused when another leads: this process must stop leading, so it exits."""
        while True:
            await asyncio.sleep(self._ttl_seconds / 4)
            try:
                bucket, began = await self._bucket(), time.monotonic()
                self._revision = await bucket.update(LEADER_KEY, self._instance, self._revision, ttl_seconds=self._ttl_seconds)
                self._renewed_at = began
            except SequenceMismatch as wrong:
                if not await self._create():  # it may have expired without another scheduler, as while the server was away
                    raise Refused(f"{await self.leader()} leads now; this scheduler stops and may start again") from wrong

    async def resign(self) -> None:
        """Delete the key if it is ours, so that the next scheduler leads at once."""
        if await self.leader() == self._instance.decode():
            await (await self._bucket()).delete(LEADER_KEY)

    async def _create(self) -> bool:
        began = time.monotonic()
        try:
            self._revision = await (await self._bucket()).create(LEADER_KEY, self._instance, ttl_seconds=self._ttl_seconds)
        except SequenceMismatch:
            return False
        self._renewed_at = began
        return True

    async def _bucket(self) -> KeyValue:
        return await self._bus.kv(LEASES_BUCKET)
