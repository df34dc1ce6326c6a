"""The agent-runner service: follows its lease, takes part in the leased run, and ends all its agents when it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from seamlessflow.contracts import Lease
from seamlessflow.runtime import Context, LeaseWatch, read_run

from .config import RunnerSettings
from .episodes.episode_attempt import Surroundings
from .episodes.local_episode import AgentHosting
from .external.episode_api import EpisodeApi
from .gateway.auth import Access
from .gateway.call_requests import CallRequests
from .gateway.episode_routes import EpisodeRoutes
from .gateway.http_server import Gateway
from .gateway.sessions import Sessions
from .processes.forkserver_client import ForkserverPool
from .processes.memory_limit import MemoryWatch
from .processes.work_dirs import WorkDirs
from .run import RunnerRun

log = structlog.get_logger()


class AgentRunner:
    """The service of one process; the package's docstring describes it."""

    def __init__(self, context: Context, settings: RunnerSettings) -> None:
        self._context, self._settings = context, settings
        self._episodes = EpisodeApi(context.journal)
        self._runner_run: RunnerRun | None = None

    async def run(self) -> None:
        """Serve until a stop is requested. Raises ConfigError: the gateway's address cannot be bound, or needs a token."""
        async with self._surroundings() as around:

            async def on_lease(lease: Lease) -> None:
                await self._follow(lease, around)

            watch = LeaseWatch(self._context.bus, self._context.settings.node, on_lease)
            work = [watch.run()] if around.local is None else [watch.run(), around.local.memory.run()]
            try:
                await self._context.until_stopped(*work)
            finally:
                self._episodes.is_closing = True
                await self._leave()

    @asynccontextmanager
    async def _surroundings(self) -> AsyncIterator[Surroundings]:
        settings, journal, sessions = self._settings, self._context.journal, Sessions()
        calls, episodes = CallRequests(self._context.bus, journal), self._episodes
        access = Access(settings.gateway_token, settings.gateway_host, settings.gateway_url)
        gateway = Gateway(sessions, calls, EpisodeRoutes(episodes, access, settings.gateway_url))
        async with AsyncExitStack() as stack:
            # First of all: a folder that cannot be used is reported before anything listens.
            folder = None if settings.gateway_only else await stack.enter_async_context(self._folder())
            await calls.open()
            stack.push_async_callback(calls.close)
            await gateway.open(settings.gateway_host, settings.gateway_port)
            stack.push_async_callback(gateway.close)
            self._context.presence.update(facts={"gateway": gateway.base_url})
            local = None
            if folder is not None:
                forkservers = ForkserverPool()
                stack.push_async_callback(forkservers.close)
                local = AgentHosting(forkservers, MemoryWatch(), folder.path, settings.kill_grace_seconds, gateway.base_url)
            yield Surroundings(journal, sessions, settings.instance, episodes, local)

    @asynccontextmanager
    async def _folder(self) -> AsyncIterator[WorkDirs]:
        folder = await asyncio.to_thread(WorkDirs.take, self._settings.work_dir, self._settings.instance)
        try:
            yield folder
        finally:
            await asyncio.to_thread(folder.remove)

    async def _follow(self, lease: Lease, around: Surroundings) -> None:
        if self._runner_run is not None and self._runner_run.run != lease.run:
            await self._leave()
        if lease.run is None:
            gateway = self._context.presence.status.facts.get("gateway", "")
            self._context.presence.update(state=f"idle: no lease names a run; its gateway is {gateway}")
            return
        if self._runner_run is None:
            self._runner_run = await self._join(lease.run, around)
        await self._runner_run.hold(lease.tags)
        log.info("run.held", run=lease.run, envs=lease.tags, epoch=lease.epoch)

    async def _join(self, run: str, around: Surroundings) -> RunnerRun:
        self._context.presence.update(state=f"waiting for run {run} to be started")
        config = await read_run(self._context.journal, run)
        return RunnerRun(self._context, self._settings, around, self._episodes, run, config)

    async def _leave(self) -> None:
        runner_run, self._runner_run = self._runner_run, None
        if runner_run is not None:
            await runner_run.leave()
            log.info("run.left", run=runner_run.run)
