"""Whose turn the device is: the trainer computes only while its lease says train and it holds the device lock.

lease train  ──▶ take the lock ──▶ RoleTaken ──▶ steps may begin
other lease  ──▶ no step begins; the one in progress ends ──▶ release the lock ──▶ RoleReleased
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from seamlessflow.contracts import Lease, Role, RoleReleased, RoleTaken, Service
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.runtime import DeviceLock, Speaker

log = structlog.get_logger()


class DeviceTurn:
    """One per process; serves one run at a time."""

    def __init__(self, lock: DeviceLock, speaker: Speaker, node: str) -> None:
        self._lock, self._speaker, self._node = lock, speaker, node
        self._may_step = asyncio.Event()
        self._step = asyncio.Lock()
        self._taking: asyncio.Task[None] | None = None
        self.epoch = 0
        """Of the newest lease."""

    async def on_lease(self, lease: Lease) -> None:
        """Obey a lease that names our run. Taking may wait for the lock, in the background; releasing waits for a step."""
        self.epoch = lease.epoch
        await self._stop_taking()
        if lease.role is Role.TRAIN:
            self._taking = asyncio.create_task(self._take(lease))
        else:
            await self.release()
            assert lease.run is not None
            await self._speaker.say(
                RoleReleased(run=lease.run, node=self._node, epoch=lease.epoch, service=Service.TRAINER.value)
            )

    async def _take(self, lease: Lease) -> None:
        if not self._lock.held:
            await self._lock.take()
        self._may_step.set()
        log.info("device.taken", epoch=lease.epoch)
        assert lease.run is not None
        taken = RoleTaken(run=lease.run, node=self._node, epoch=lease.epoch, service=Service.TRAINER.value)
        try:
            await self._speaker.say(taken)
        except SeamlessFlowError as wrong:  # the device is ours all the same; StepTaken will show it
            log.warning("device.unsaid", epoch=lease.epoch, reason=str(wrong))

    async def _stop_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)
            self._taking = None

    async def release(self) -> None:
        """Let go of the device once no step is in progress; nothing when it is not ours."""
        await self._stop_taking()
        self._may_step.clear()
        async with self._step:
            if self._lock.held:
                self._lock.release()
                log.info("device.released", epoch=self.epoch)

    @asynccontextmanager
    async def held(self, cancelled: asyncio.Event) -> AsyncIterator[bool]:
        """Wait for our turn and keep it for the block. Yields False, without the device, once ``cancelled`` is set."""
        while not cancelled.is_set():
            await _either(self._may_step, cancelled)
            async with self._step:
                if self._may_step.is_set() and not cancelled.is_set():
                    yield True
                    return
        yield False


async def _either(first: asyncio.Event, second: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in (first, second)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waits:
            task.cancel()
