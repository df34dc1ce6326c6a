"""Where a scenario is played: a folder with a run, its processes, and the server whose journal is recorded."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import tomli_w

from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.cli.run_location import Address, Folder
from seamlessflow.client import Client
from seamlessflow.contracts import Event
from seamlessflow.contracts.routes import CONTROL_STREAM
from seamlessflow.contracts.streams import journal_stream
from tests.system.conftest import Training, environment, until

from .recordings import BUCKETS, Recording

SECONDS = 240.0
"""Longest that anything is waited for."""


class Stage:
    """One scenario's folder, and what runs in it. ``run`` is also its name; ``server`` the folder of the server it is on."""

    def __init__(self, folder: Path, run: str) -> None:
        self.path, self.run, self.server = folder, run, Folder(folder / "runs" / run)
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, name: str, *arguments: str, **more: str) -> Training:
        """A process of ours, its output in a file."""
        output = self.path / f"{name}.out"
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments], cwd=self.path, env={**_environment(self.path), **more},
                stdout=file, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        self._processes.append(process)
        return Training(process, self.path / "runs" / self.run, output)

    def train(self, config: dict[str, Any], *arguments: str) -> Training:
        (self.path / "run.toml").write_text(tomli_w.dumps(config))
        return self.start("train", "seamlessflow.cli", "train", "run.toml", "--name", self.run, *arguments)

    @property
    def store(self) -> Path:
        return self.server.path / "store" / self.run

    def address(self) -> Address | None:
        return self.server.living_address()

    async def until(self, holds: Callable[[list[Event]], bool], *, live: bool = False) -> list[Event]:
        """Follow the journal from its beginning until something holds of what was said so far; returns at once then.

        live: it has to hold of something that is stored from now on."""
        events: list[Event] = []
        began = time.time() if live else 0.0
        async with asyncio.timeout(SECONDS), self._client() as client:
            while self.run not in await client.runs():
                await asyncio.sleep(0.1)
            async for record, event in client.events(self.run, follow=True):
                events.append(event)
                if record.time >= began and holds(events):
                    break
        return events

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        until(lambda: self.address() is not None, SECONDS)
        address = self.address()
        assert address is not None
        async with Client.open(address.nats_url, address.store_url, patience_seconds=30) as client:
            yield client

    def power_cut(self, training: Training) -> None:
        """Everything dies at once. First the one that would start others again stands still."""
        os.kill(training.process.pid, signal.SIGSTOP)
        for pid in [*_children(training.process.pid), training.process.pid]:
            os.kill(pid, signal.SIGKILL)
        training.process.wait()

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    async def dump(self) -> Recording:
        """What the server's folder holds, read by a server of our own."""
        server = EmbeddedServer(self.server.server).start(lock_seconds=30)
        try:
            bus = await connect(server.url, name="record")
            streams = {name: [each async for each in bus.read(name)] for name in (CONTROL_STREAM, journal_stream(self.run))}
            buckets = {}
            for name in BUCKETS:
                entries = await (await bus.kv(name)).entries()
                buckets[name] = {each.key: each.value for each in entries if "." not in each.key}  # the leader's key expires
            await bus.close()
        finally:
            server.stop()
        return Recording(self.run, streams, buckets)


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(status[1]) == parent:
                found.append(int(entry.name))
    return found


def _environment(folder: Path) -> dict[str, str]:
    return {**environment(), "SEAMLESSFLOW_MODEL_CACHE": str(folder / "models")}
