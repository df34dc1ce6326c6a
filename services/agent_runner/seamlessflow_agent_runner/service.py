"""The agent-runner: follows its lease, is a member of the run it names, and leaves nobody behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from seamlessflow.contracts import Lease
from seamlessflow.runtime import Context, LeaseWatch, read_run

from .config import RunnerSettings
from .episodes.episode_attempt import Surroundings
from .episodes.local_episode import Hosting
from .external.episode_api import EpisodeDesk
from .gateway.auth import Access
from .gateway.call_requests import CallDesk
from .gateway.episode_routes import EpisodeRoutes
from .gateway.http_server import Gateway
from .gateway.sessions import Sessions
from .processes.forkserver_client import Nursery
from .processes.memory_limit import MemoryWatch
from .processes.work_dirs import AgentsFolder
from .run import Membership

log = structlog.get_logger()


class AgentRunner:
    """See the package's card."""

    def __init__(self, context: Context, settings: RunnerSettings) -> None:
        self._context, self._settings = context, settings
        self._membership: Membership | None = None

    async def run(self) -> None:
        """Until a stop is asked for. Raises ConfigError: the gateway's address cannot be had, or it needs a token."""
        async with self._surroundings() as around:

            async def on_lease(lease: Lease) -> None:
                await self._follow(lease, around)

            watch = LeaseWatch(self._context.bus, self._context.settings.node, on_lease)
            work = [watch.run()] if around.hosting is None else [watch.run(), around.hosting.memory.run()]
            try:
                await self._context.until_stopped(*work)
            finally:
                around.desk.is_closing = True
                await self._leave()

    @asynccontextmanager
    async def _surroundings(self) -> AsyncIterator[Surroundings]:
        settings, journal, sessions = self._settings, self._context.journal, Sessions()
        calls, episodes = CallDesk(self._context.bus, journal), EpisodeDesk(journal)
        access = Access(settings.gateway_token, settings.gateway_host, settings.gateway_url)
        gateway = Gateway(sessions, calls, EpisodeRoutes(episodes, access, settings.gateway_url))
        async with AsyncExitStack() as stack:
            # First of all: a folder that cannot be had is said before anything listens.
            folder = None if settings.gateway_only else await stack.enter_async_context(self._folder())
            await calls.open()
            stack.push_async_callback(calls.close)
            await gateway.open(settings.gateway_host, settings.gateway_port)
            stack.push_async_callback(gateway.close)
            self._context.presence.update(facts={"gateway": gateway.base_url})
            hosting = None
            if folder is not None:
                nursery = Nursery()
                stack.push_async_callback(nursery.close)
                hosting = Hosting(nursery, MemoryWatch(), folder.path, settings.kill_grace_seconds, gateway.base_url)
            yield Surroundings(journal, sessions, settings.instance, episodes, hosting)

    @asynccontextmanager
    async def _folder(self) -> AsyncIterator[AgentsFolder]:
        folder = await asyncio.to_thread(AgentsFolder.take, self._settings.work_dir, self._settings.instance)
        try:
            yield folder
        finally:
            await asyncio.to_thread(folder.remove)

    async def _follow(self, lease: Lease, around: Surroundings) -> None:
        if self._membership is not None and self._membership.run != lease.run:
            await self._leave()
        if lease.run is None:
            gateway = self._context.presence.status.facts.get("gateway", "")
            self._context.presence.update(state=f"idle: no lease names a run; its gateway is {gateway}")
            return
        if self._membership is None:
            self._membership = await self._join(lease.run, around)
        await self._membership.hold(lease.tags)
        log.info("run.held", run=lease.run, envs=lease.tags, epoch=lease.epoch)

    async def _join(self, run: str, around: Surroundings) -> Membership:
        self._context.presence.update(state=f"waiting for run {run} to be started")
        config = await read_run(self._context.journal, run)
        return Membership(self._context, self._settings, around, run, config)

    async def _leave(self) -> None:
        membership, self._membership = self._membership, None
        if membership is not None:
            await membership.leave()
            log.info("run.left", run=membership.run)
