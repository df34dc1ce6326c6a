"""``python -m loadtest.fleet.timed_process``: some of a timed run's services in one process, each on a connection of its own.

Reads its place as JSON from the first line of standard input, then commands, one a line:

    {"start": [PART…]} · {"die": NODE}: as a killed process would · end of input: everything ends, orderly where it can

Says one line of JSON at the end: CPU seconds, and how late its event loop ran (the harness must not be what is measured).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import resource
import sys
from typing import Any

import uvloop

from seamlessflow.config.settings import Settings
from seamlessflow.contracts import Service
from seamlessflow.telemetry import configure_logging

from .timed_clock import percentile
from .timed_parts import Parts, Place

LAG_SECONDS = 0.05


class Lag:
    """How late the event loop is."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self.seconds.append(loop.time() - due)


class Host:
    """The parts of one process, from their start to their end."""

    def __init__(self, place: Place) -> None:
        self._place, self._parts, self._lag = place, Parts(place), Lag()
        self._measuring: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if any(name.startswith("worker/") for name in self._place.parts):
            await asyncio.to_thread(importlib.import_module, "safetensors.torch")  # seconds, which no update is to wait for
        for name in self._place.parts:
            await self._parts.start(name)
        self._measuring = asyncio.create_task(self._lag.measure())

    async def tell(self, command: dict[str, Any]) -> None:
        """One of the commands that the module describes."""
        if "die" in command:
            await self._parts.die(command["die"])
        for name in command.get("start", ()):
            await self._parts.start(name)

    async def end(self) -> dict[str, object]:
        """End all parts; returns what is to be said of this process."""
        await self._parts.end()
        if self._measuring is not None:
            self._measuring.cancel()
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "cpu_seconds": used.ru_utime + used.ru_stime,
            "lag_p50": percentile(self._lag.seconds, 0.5),
            "lag_p99": percentile(self._lag.seconds, 0.99),
            "failures": self._parts.failures,
        }


async def serve() -> None:
    lines = await _standard_input()
    place = Place(**json.loads(await lines.readline()))
    configure_logging(Settings(log_level="warning", instance="+".join(place.parts)[:60]), Service.USER)
    host = Host(place)
    await host.start()
    print(json.dumps({"ready": place.parts}), flush=True)
    while line := await lines.readline():
        await host.tell(json.loads(line))
    print(json.dumps(await host.end()), flush=True)


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


if __name__ == "__main__":
    uvloop.run(serve())
