"""Whose turn the device is: the trainer computes only while its lease says train and it holds the device lock.

lease train  ──▶ take the lock, load ──▶ RoleTaken ──▶ the run's trainer may step; a member of its gang holds the device for it
other lease  ──▶ no step begins; the one in progress ends ──▶ unload, release the lock ──▶ RoleReleased
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import structlog

from seamlessflow.contracts import Lease, Role, RoleReleased, RoleTaken, Service
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.runtime import DeviceLock, Journal

log = structlog.get_logger()

REPUBLISH_SECONDS = 1.0
"""How long after a failure RoleTaken is said again."""


class Occupant(Protocol):
    """What moves to the device when it is taken, and away before it is released."""

    async def load(self) -> None:
        """May be cancelled; ``unload`` follows then, too."""
        ...

    async def unload(self) -> None: ...


class _NoOccupant:
    """The torch learner stays where it is: both are there all the time."""

    async def load(self) -> None:
        pass

    async def unload(self) -> None:
        pass


class DeviceTurn:
    """One per process; serves one run at a time."""

    def __init__(self, lock: DeviceLock, journal: Journal, node: str, occupant: Occupant | None = None) -> None:
        self._lock, self._journal, self._node = lock, journal, node
        self._occupant = occupant or _NoOccupant()
        self._may_step = asyncio.Event()
        self._step = asyncio.Lock()
        self._taking: asyncio.Task[None] | None = None
        self._taking_for = ""
        self._announced_run: str | None = None
        """The run that may think that we have its device: it heard RoleTaken and no RoleReleased."""
        self._is_loaded = False
        self._is_new = True
        """An earlier process of this node may have died with the device; nobody else will say that it is free."""
        self.epoch = 0
        """Of the newest lease."""
        self.recalled = asyncio.Event()
        """Set while the newest lease does not leave us the device: a step that still waits for groups has to end."""
        self.num_nodes = 1
        """How many nodes take a step together under the newest lease, this one included."""
        self.others_sample = True
        """Whether somebody samples while the device is ours, so that a step that began early may wait for groups."""

    async def on_lease(self, lease: Lease) -> None:
        """Obey a lease. Taking may wait for the lock, in the background; releasing waits for a step."""
        self.epoch, self.num_nodes = lease.epoch, max(1, len(lease.gang))
        is_new, self._is_new = self._is_new, False
        if lease.run is not None and lease.role is Role.TRAIN:
            self.recalled.clear()
            self.others_sample = lease.hand_back
            if self._taking is not None and not self._taking.done() and self._taking_for == lease.run:
                return  # it says what it took under the newest lease
        else:
            self.recalled.set()
        await self._stop_taking()
        if self._announced_run not in (None, lease.run):
            await self._give_back(str(self._announced_run))
        if lease.run is None:
            await self.release()
        elif lease.role is Role.TRAIN:
            self._taking, self._taking_for = asyncio.create_task(self._take(lease.run)), lease.run
        elif lease.trainer or self._announced_run is not None or is_new:
            await self._give_back(lease.run)

    async def _take(self, run: str) -> None:
        if not self._lock.held:
            await self._lock.take()
        self._announced_run = run
        if not self._is_loaded:
            await self._occupant.load()
            self._is_loaded = True
        self._may_step.set()
        published_epoch = -1
        while published_epoch < self.epoch:  # a newer lease may come meanwhile
            epoch = self.epoch
            log.info("device.taken", epoch=epoch, num_nodes=self.num_nodes)
            try:
                await self._journal.publish(RoleTaken(run=run, node=self._node, epoch=epoch, service=Service.TRAINER.value))
                published_epoch = epoch
            except SeamlessFlowError as wrong:  # the device is ours all the same, and a gang waits to hear it
                log.warning("device.unsaid", epoch=epoch, reason=str(wrong), again_in_seconds=REPUBLISH_SECONDS)
                await asyncio.sleep(REPUBLISH_SECONDS)

    async def _give_back(self, run: str) -> None:
        await self.release()
        await self._journal.publish(RoleReleased(run=run, node=self._node, epoch=self.epoch, service=Service.TRAINER.value))
        self._announced_run = None

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
                try:
                    await self._occupant.unload()
                finally:
                    self._is_loaded = False
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
