"""The agent-runner: follows its lease, is a member of the run it names, and leaves nobody behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from seamlessflow.contracts import Lease
from seamlessflow.runtime import Context, LeaseWatch, read_run

from .config import RunnerSettings
from .episodes import Surroundings
from .gateway.calls import CallDesk
from .gateway.server import Gateway
from .gateway.sessions import Sessions
from .homes import AgentsFolder
from .membership import Membership
from .memory import MemoryWatch
from .nursery import Nursery

log = structlog.get_logger()


class AgentRunner:
    """See the package's card."""

    def __init__(self, context: Context, settings: RunnerSettings) -> None:
        self._context, self._settings = context, settings
        self._membership: Membership | None = None

    async def run(self) -> None:
        """Until a stop is asked for. Raises ConfigError when the gateway's address cannot be had."""
        async with self._surroundings() as around:

            async def on_lease(lease: Lease) -> None:
                await self._follow(lease, around)

            watch = LeaseWatch(self._context.bus, self._context.settings.node, on_lease)
            try:
                await self._context.until_stopped(watch.run(), around.memory.run())
            finally:
                await self._leave()

    @asynccontextmanager
    async def _surroundings(self) -> AsyncIterator[Surroundings]:
        sessions = Sessions()
        desk = CallDesk(self._context.bus, self._context.speaker)
        gateway = Gateway(sessions, desk)
        nursery = Nursery()
        folder = await asyncio.to_thread(AgentsFolder.take, self._settings.work_dir, self._settings.instance)
        await gateway.open(self._settings.gateway_host, self._settings.gateway_port)
        await desk.open()
        self._context.presence.update(facts={"gateway": gateway.base_url})
        try:
            yield Surroundings(
                self._context.speaker, sessions, gateway, nursery, MemoryWatch(), folder.path,
                self._settings.instance, self._settings.kill_grace_seconds,
            )  # fmt: skip
        finally:
            await nursery.close()
            await gateway.close()
            await desk.close()
            await asyncio.to_thread(folder.remove)

    async def _follow(self, lease: Lease, around: Surroundings) -> None:
        if self._membership is not None and self._membership.run != lease.run:
            await self._leave()
        if lease.run is None:
            self._context.presence.update(state="idle: no lease names a run")
            return
        if self._membership is None:
            self._membership = await self._join(lease.run, around)
        await self._membership.hold(lease.tags)
        log.info("run.held", run=lease.run, envs=lease.tags, epoch=lease.epoch)

    async def _join(self, run: str, around: Surroundings) -> Membership:
        self._context.presence.update(state=f"waiting for run {run} to be started")
        config = await read_run(self._context.speaker, run)
        return Membership(self._context, self._settings, around, run, config)

    async def _leave(self) -> None:
        membership, self._membership = self._membership, None
        if membership is not None:
            await membership.leave()
            log.info("run.left", run=membership.run)
