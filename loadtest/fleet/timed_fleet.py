"""The processes of a timed run, and its churn: who starts, dies and joins."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from seamlessflow.errors import SeamlessFlowError

from .timed_cell import Cell
from .timed_parts import Place
from .timed_process import Host

NODES_A_PROCESS = 32
NODES_IN_ONE = 3
"""So small a fleet is one process: most of its time is starting."""


class Process:
    """One child, told by lines on its standard input."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, place: Place, log: Path) -> Process:
        arguments = (sys.executable, "-m", "loadtest.fleet.timed_process")
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors
            )
        started = cls(process)
        await started.tell(asdict(place))
        await started.line()
        return started

    async def tell(self, command: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        await self._process.stdin.drain()

    async def line(self) -> dict[str, object]:
        """What it says next. Raises RuntimeError when it died."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the timed run died with {await self._process.wait()}")
        said: dict[str, object] = json.loads(line)
        return said

    async def end(self) -> dict[str, object]:
        assert self._process.stdin is not None
        self._process.stdin.close()
        said = await self.line()
        await self._process.wait()
        return said

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class Here(Host):
    """The same in this very process: what a small fleet takes longest for is starting others."""

    async def kill(self) -> None:
        pass


class Fleet:
    """All processes of a cell."""

    def __init__(self, cell: Cell, nats_url: str, folder: Path) -> None:
        self._cell, self._nats_url, self._folder = cell, nats_url, folder
        self._processes: dict[str, Process | Here] = {}
        self._nodes = [f"n{number:04d}" for number in range(cell.nodes)]
        self._num_ever = cell.nodes
        self.died: list[str] = []

    async def start(self) -> None:
        if len(self._nodes) <= NODES_IN_ONE:
            devices = [f"{kind}/{node}" for kind in ("worker", "trainer") for node in self._nodes]
            here = Here(self._place(["scheduler", "manager", "players", *devices]))
            await here.start()
            self._processes["trainers"] = here
            return
        await asyncio.gather(self._start("scheduler", ["scheduler"]), self._start("manager", ["manager"]))
        cuts = [self._nodes[at : at + NODES_A_PROCESS] for at in range(0, len(self._nodes), NODES_A_PROCESS)]
        await asyncio.gather(
            self._start("players", ["players"]),
            self._start("trainers", [f"trainer/{node}" for node in self._nodes]),
            *(self._start(f"workers-{at}", [f"worker/{node}" for node in nodes]) for at, nodes in enumerate(cuts)),
        )

    async def churn(self, every_seconds: float) -> None:
        """A node dies, another joins, until cancelled."""
        dice = random.Random(self._cell.seed)
        while True:
            await asyncio.sleep(every_seconds)
            dead, new = dice.choice(self._nodes), f"n{self._num_ever:04d}"
            self._num_ever += 1
            self.died.append(dead)
            self._nodes[self._nodes.index(dead)] = new
            for process in self._processes.values():
                await process.tell({"die": dead})
            await self._processes["trainers"].tell({"start": [f"trainer/{new}"]})
            await self._processes.get("workers-0", self._processes["trainers"]).tell({"start": [f"worker/{new}"]})

    async def end(self) -> dict[str, dict[str, object]]:
        """End all; returns what each said of itself."""
        names = list(self._processes)
        said = await asyncio.gather(*(self._processes.pop(name).end() for name in names))
        return dict(zip(names, said, strict=True))

    async def kill(self) -> None:
        for process in self._processes.values():
            await process.kill()

    async def _start(self, name: str, parts: Sequence[str]) -> None:
        self._processes[name] = await Process.start(self._place(parts), self._folder / f"{name}.log")

    def _place(self, parts: Sequence[str]) -> Place:
        return Place(self._nats_url, f"file://{self._folder}/store", str(self._folder), self._cell.to_json(), list(parts))


@asynccontextmanager
async def fleet_of(cell: Cell, nats_url: str, folder: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(cell, nats_url, folder)
    try:
        await fleet.start()
        yield fleet
    except SeamlessFlowError as wrong:
        raise RuntimeError(f"{cell.run}: {wrong}") from wrong
    finally:
        await fleet.kill()
