"""What a worker pulls: the tags of its lease; where episodes keep their weights version, those of versions it has."""

from __future__ import annotations

import asyncio
from collections import Counter

import structlog

from seamlessflow.contracts import Lease
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.run_config import RunConfig

from .keeping import Keeping
from .pulls import Pulls, common_parts, late_parts, owned_buckets, parts_of

log = structlog.get_logger()

RETRY_SECONDS = 1.0


class Intake:
    """The pulls of one run, as its newest lease and its versions say. ``keeping`` None: its episodes keep no version."""

    def __init__(self, pulls: Pulls, config: RunConfig, keeping: Keeping | None = None) -> None:
        self._pulls, self._config, self._keeping = pulls, config, keeping
        self._lease: Lease | None = None
        """None: nothing is pulled."""
        self.owned: dict[str, tuple[int, ...]] = {}
        """Affinity buckets of this worker, by work tag, as the newest lease says that it pulled under."""
        self._turn = asyncio.Lock()
        self._turning: asyncio.Task[None] | None = None

    @property
    def num_taken(self) -> Counter[int]:
        """Generations that were pulled, by the priority of the pull."""
        return self._pulls.num_taken

    async def open(self, lease: Lease) -> None:
        """Pull as a lease says: of its affinity buckets first of all nodes, of the others as a backup."""
        self._lease = lease
        await self._open()

    def turn(self) -> None:
        """Other versions are here, or are nowhere: pull accordingly, soon."""
        if self._turning is None or self._turning.done():
            self._turning = asyncio.create_task(self._open_soon())

    def look(self) -> None:
        """There may be more room for new episodes."""
        self._pulls.look()

    def pause(self) -> None:
        """Ask for nothing more; what is held is kept."""
        self._lease = None
        self._pulls.pause()

    async def leave(self) -> None:
        """Leave all consumers; waits for running handlers."""
        self._lease = None
        if self._turning is not None:
            self._turning.cancel()
            await asyncio.gather(self._turning, return_exceptions=True)
        await self._pulls.leave()

    async def _open(self) -> None:
        async with self._turn:
            while (lease := self._lease) is not None:
                tags = lease.tags if self._keeping is None else self._keeping.tags(lease.tags)
                mine = lease if tags == lease.tags else lease.model_copy(update={"tags": tags})
                run = self._config.work_tags, self._config.fleet.buckets, self._config.has_classes
                self.owned = owned_buckets(mine, *run[:2])
                await self._pulls.open(parts_of(mine, *run), late_parts(mine, *run), common_parts(mine, *run[:2]))
                if self._lease is None:  # paused meanwhile
                    self._pulls.pause()
                elif self._keeping is None or (self._lease == lease and self._keeping.tags(lease.tags) == tags):
                    return

    async def _open_soon(self) -> None:
        while True:
            try:
                await self._open()
                return
            except SeamlessFlowError as wrong:
                log.warning("pulls.delayed", reason=str(wrong), next_try_seconds=RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
