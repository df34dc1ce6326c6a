"""How tests run a scheduler and managers: in processes of their own on a real server, or in this one, in memory."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from seamlessflow.bus.base import Bus, KeyValue
from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.contracts import Service
from seamlessflow.errors import BusClosed
from seamlessflow.runtime import Context, make_context
from seamlessflow_scheduler.config import SchedulerSettings
from seamlessflow_scheduler.service import Scheduler
from seamlessflow_trajectory_manager.config import ManagerSettings
from seamlessflow_trajectory_manager.service import TrajectoryManager

from .conftest import environment


class Services(Protocol):
    """How scheduler and managers are run."""

    async def connect(self) -> Bus: ...
    async def start(self, node: str, service: Service) -> None: ...
    async def end(self, node: str, number: signal.Signals) -> None:
        """SIGKILL or SIGTERM."""
        ...

    async def close(self) -> None: ...


class Processes:
    """Real ones, on a real nats-server."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    async def connect(self) -> Bus:
        return await connect(self._server.url, name="load")

    async def start(self, node: str, service: Service) -> None:
        with (self._folder / f"{node}.log").open("ab") as log:
            self._running[node] = subprocess.Popen(
                [sys.executable, "-m", f"services.{service.value.replace('-', '_')}"],
                cwd=self._folder, stdout=log, stderr=log,
                env={
                    **environment(),
                    "SEAMLESSFLOW_NATS_URL": self._server.url,
                    "SEAMLESSFLOW_STORE_URL": f"file://{self._folder}/store",
                    "SEAMLESSFLOW_WORK_DIR": str(self._folder / node),
                    "SEAMLESSFLOW_NODE": node,
                },
            )  # fmt: skip

    async def end(self, node: str, number: signal.Signals) -> None:
        self._running[node].send_signal(number)

    async def close(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def log_of(self, node: str) -> str:
        """For messages of tests that fail."""
        return (self._folder / f"{node}.log").read_text()[-4000:]


class Tasks:
    """In this process, on a bus in memory."""

    def __init__(self, folder: Path) -> None:
        self._server, self._folder = MemoryServer(), folder
        self._running: dict[str, tuple[MortalBus, Context, list[asyncio.Task[None]]]] = {}

    async def connect(self) -> Bus:
        return MemoryBus(self._server)

    async def start(self, node: str, service: Service) -> None:
        bus = MortalBus(self._server)
        given = {"store_url": f"file://{self._folder}/store", "node": node, "instance": node, "work_dir": self._folder / node}
        settings = SchedulerSettings(**given) if service is Service.SCHEDULER else ManagerSettings(**given)
        context = make_context(service, settings, bus, capabilities=("serve",))
        runs = (
            Scheduler(context, settings).run() if isinstance(settings, SchedulerSettings) else TrajectoryManager(context).run()
        )
        self._running[node] = bus, context, [asyncio.create_task(runs), asyncio.create_task(context.presence.run())]

    async def end(self, node: str, number: signal.Signals) -> None:
        bus, context, (service, presence) = self._running.pop(node)
        if number is signal.SIGTERM:
            context.stopping.set()
            await service
        else:
            await bus.abort()
        service.cancel()
        presence.cancel()
        await asyncio.gather(service, presence, return_exceptions=True)
        await bus.close()

    async def close(self) -> None:
        for node in list(self._running):
            await self.end(node, signal.SIGKILL)


class MortalBus(MemoryBus):
    """A killed process says no goodbye."""

    async def kv(self, bucket: str) -> KeyValue:
        return MortalBucket(await super().kv(bucket), self)


class MortalBucket:
    """A bucket that only a living connection reaches."""

    def __init__(self, bucket: KeyValue, bus: MemoryBus) -> None:
        self._bucket, self._bus = bucket, bus

    def __getattr__(self, name: str) -> Any:
        if not self._bus.connected:
            raise BusClosed("this process was killed")
        return getattr(self._bucket, name)
