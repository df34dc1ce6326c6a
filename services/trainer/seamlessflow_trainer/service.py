"""Leases to training: which run this process trains, and whose turn the device is."""

from __future__ import annotations

import asyncio

import structlog

from seamlessflow.contracts import Lease, Role
from seamlessflow.runtime import Context, DeviceLock, LeaseWatch

from .config import TrainerSettings
from .device_turn import DeviceTurn, Occupant
from .learner.factory import BuildLearner, build_learner
from .run import TrainerRun

log = structlog.get_logger()

FINISH_SECONDS = 10.0
"""How long an orderly end may take to commit what was learned. Supervisors kill after 15 s or more; what was not committed
by then is done again, as after a kill."""


class Trainer:
    """One process: at most one run at a time. Joins the run of a lease that says ``trainer``, whatever its role.

    A lease with role train that does not say ``trainer`` makes the node a member of a gang: its device is held for the
    steps of the run's trainer, and nothing is joined. ``build``: what loads the learner. ``occupant``: what the device is
    taken for, where that has to move.
    """

    def __init__(
        self,
        context: Context,
        settings: TrainerSettings,
        *,
        build: BuildLearner = build_learner,
        occupant: Occupant | None = None,
    ) -> None:
        self._context, self._settings, self._build = context, settings, build
        lock = DeviceLock(settings.work_dir, settings.node)
        self._device = DeviceTurn(lock, context.journal, settings.node, occupant)
        self._trainer_run: TrainerRun | None = None
        self._task: asyncio.Task[None] | None = None
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Until stopped. A training that breaks ends the process: its supervisor starts a new line."""
        watch = LeaseWatch(self._context.bus, self._settings.node, self.on_lease)
        self._context.presence.update(state="waiting for a lease")
        try:
            await self._context.until_stopped(watch.run(), self._until_broken())
        finally:
            await self._leave(finish=self._context.stopping.is_set())

    async def _until_broken(self) -> None:
        await self._broken

    async def on_lease(self, lease: Lease) -> None:
        """Leave the run the lease does not name, join the one it does, take or release the device."""
        wanted = lease.run if lease.trainer else None
        if self._trainer_run is not None and self._trainer_run.run_name != wanted:
            await self._leave()
        await self._device.on_lease(lease)
        if wanted is None:
            self._context.presence.update(state=_idle_state(lease))
        elif self._trainer_run is None:
            self._trainer_run = TrainerRun(self._context, self._settings, wanted, self._device, self._build)
            self._task = asyncio.create_task(self._trainer_run.run())
            self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None and not self._broken.done():
            self._broken.set_exception(failure)

    async def _leave(self, *, finish: bool = False) -> None:
        """Hand the samples back and release the device. ``finish``: commit the steps that were taken first.

        Not so when a lease sends us away: the run's next trainer may have begun its line at the last checkpoint already.
        """
        if self._trainer_run is not None and self._task is not None:
            if finish and self._trainer_run.finish():
                await asyncio.wait([self._task], timeout=FINISH_SECONDS)
            self._trainer_run.give_up()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            log.info("training.left", run=self._trainer_run.run_name)
            self._context.presence.update(state="waiting for a lease")
        self._trainer_run = self._task = None
        await self._device.release()


def _idle_state(lease: Lease) -> str:
    """What a process that trains no run does under a lease, for people."""
    if lease.run is None or lease.role is not Role.TRAIN:
        return "waiting for a lease"
    lead = f" of {lease.gang[0]}" if lease.gang else ""
    return f"{lease.run}: holds its device for the steps{lead}"
