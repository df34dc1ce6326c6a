"""Deleting the queues of ended runs, beside everything else and for as long as it takes. Journals stay."""

from __future__ import annotations

import asyncio

import structlog

from seamlessflow.bus.base import Bus
from seamlessflow.contracts.routes import QUEUE_OF
from seamlessflow.contracts.streams import queue_stream
from seamlessflow.errors import SeamlessFlowError

from .conductor import Conductor

log = structlog.get_logger()

RETRY_SECONDS = 5.0


class Clearing:
    """One task per ended run. A scheduler that dies before it is done leaves the rest to the next one's start."""

    def __init__(self, bus: Bus, grace_seconds: float) -> None:
        self._bus, self._grace_seconds = bus, grace_seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, run: str, conductor: Conductor | None) -> None:
        """``conductor``: of a run that ended just now; it leaves its queue first."""
        task = asyncio.create_task(self._clear(run, conductor))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def give_up(self) -> None:
        """End all tasks, done or not."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _clear(self, run: str, conductor: Conductor | None) -> None:
        await asyncio.sleep(self._grace_seconds)  # so that everybody sees the end first
        while True:
            try:
                if conductor is not None:
                    await conductor.leave()
                for service in QUEUE_OF:
                    await self._bus.delete_stream(queue_stream(service, run))
            except SeamlessFlowError as wrong:
                log.warning("run.queues_not_deleted", run=run, reason=str(wrong), again_in_seconds=RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                log.info("run.queues_deleted", run=run)
                return
