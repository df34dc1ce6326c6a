"""Publishes the due events of one run in slices, so that incoming events and ticks get in between.

    event ──▶ applied ──▶ tick: leases are written ──▶ resume() ──▶ slice ──▶ slice ──▶ … ──▶ nothing is due
                 └ pause(): it may change roles

A step taken may open thousands of episodes, and a device that waits for its lease costs more than an episode that is not
open yet. So the publisher starts only after a tick has written leases, pauses when roles may change again, and releases the
lock as soon as another task waits for it. It has no memory: each slice is decided anew from the state of the run, so after a
crash in the middle the next scheduler publishes exactly the missing events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

import structlog

from seamlessflow.errors import SeamlessFlowError

log = structlog.get_logger()


class FairLock:
    """A first-come-first-served lock that tells its holder whether other tasks wait for it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._num_waiting = 0

    @property
    def has_waiters(self) -> bool:
        """Whether another task waits for the lock."""
        return self._num_waiting > 0

    async def __aenter__(self) -> None:
        self._num_waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._num_waiting -= 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()


class PacedPublisher:
    """Publishes for one run whenever it is not paused.

    publish_slice: called with the lock held; returns whether more may be due. on_drained: called when several slices are out.
    """

    def __init__(
        self, run: str, lock: FairLock, publish_slice: Callable[[], Awaitable[bool]], on_drained: Callable[[], None]
    ) -> None:
        self._run, self._lock, self._publish_slice, self._on_drained = run, lock, publish_slice, on_drained
        self._may_publish = asyncio.Event()
        self.num_pauses = 0
        """How often roles were about to change."""
        self._task = asyncio.create_task(self._publish())

    def resume(self, num_pauses: int) -> None:
        """Publish again, unless there was another pause since ``num_pauses``, the count that the written plan knew of.

        Raises the error that ended the publishing task: a mistake of ours.
        """
        if self._task.done():
            self._task.result()
        if num_pauses == self.num_pauses:
            self._may_publish.set()

    def pause(self) -> None:
        """Publish nothing more until leases are written. The caller must hold the lock."""
        self.num_pauses += 1
        self._may_publish.clear()

    async def end(self) -> None:
        """Stop for good; unpublished events are due for the next scheduler."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)  # a mistake was raised by ``resume``

    async def _publish(self) -> None:
        has_published = False
        while True:
            await self._may_publish.wait()
            async with self._lock:
                if not self._may_publish.is_set():  # something else came first
                    continue
                try:
                    more = await self._publish_slice()
                except SeamlessFlowError as wrong:  # the journal holds what was published; the next tick publishes the rest
                    log.warning("run.delayed", run=self._run, reason=str(wrong))
                    more = False
                if not more:
                    self._may_publish.clear()
            if has_published and not more:
                self._on_drained()
            has_published = more
            await asyncio.sleep(0)  # a bus in memory does not wait for anything
