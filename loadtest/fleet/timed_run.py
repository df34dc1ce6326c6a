"""One cell, played: a nats-server, the services in a few processes, a run from its request to its end, and its journal.

    nats-server │ scheduler │ manager │ players │ workers… │ trainers        processes; devices are objects of the last two
    RunRequested ─▶ tasks ─▶ … ─▶ RunEnded ─▶ the journal, read whole ─▶ figures

Churn: now and then a node's worker and trainer go as killed processes do, and a new node comes.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from seamlessflow.blobs import Store
from seamlessflow.bus.jetstream import JetStreamBus, connect
from seamlessflow.bus.server import EmbeddedServer
from seamlessflow.contracts import Event, RunEnded, RunRequested, Service, StepTaken, TasksEnded, TaskSubmitted
from seamlessflow.contracts.streams import consumer_name, control_streams, journal, queue_stream
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.models.tiny import make_tiny
from seamlessflow.runtime import Speaker

from .timed_cell import ENV, Cell
from .timed_process import Host, Place

NODES_A_PROCESS = 32
NODES_IN_ONE = 3
"""So small a fleet is one process: most of its time is starting."""
POLL_SECONDS = 0.25
JUDGE_SECONDS = 20.0


@dataclass
class Played:
    """What came of a cell. ``events``: (event, Unix time) of the journal, in order."""

    cell: Cell
    events: list[tuple[Event, float]]
    wall_seconds: float
    processes: dict[str, dict[str, object]] = field(default_factory=dict)
    """What each process said of itself at its end."""
    died: list[str] = field(default_factory=list)


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


async def play(
    cell: Cell,
    *,
    say: Callable[[str], None] = lambda _: None,
    churn_seconds: float | None = None,
    limit_seconds: float = 3600.0,
    keep: Path | None = None,
) -> Played:
    """Play a cell to its end. churn_seconds: real seconds between two deaths of a node. keep: a folder for this cell
    alone, where its logs and its journal stay."""
    async with AsyncExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-")))
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier run, kept for people
        folder.mkdir(parents=True)
        server = EmbeddedServer(folder / "nats").start()
        stack.callback(server.stop)
        bus = await stack.enter_async_context(_bus(server.url))
        fleet = await stack.enter_async_context(_fleet(cell, server.url, folder))
        began = time.monotonic()
        speaker = Speaker(bus, Store(f"file://{folder}/store"))
        await _request(cell, bus, speaker, str(make_tiny(folder / "tiny", 0, warm_start_steps=0)))
        churn = asyncio.create_task(fleet.churn(churn_seconds)) if churn_seconds else None
        try:
            async with asyncio.timeout(limit_seconds):
                await _until_over(cell, speaker, say)
        finally:
            if churn is not None:
                churn.cancel()
        await _until_judged(cell, bus)
        wall = time.monotonic() - began
        processes = await fleet.end()
        events = [(await speaker.open(record), record.time) async for record in bus.read(journal(cell.run))]
        return Played(cell, events, wall, processes, fleet.died)


async def _request(cell: Cell, bus: JetStreamBus, speaker: Speaker, model: str) -> None:
    for stream in control_streams():
        await bus.ensure_stream(stream)
    await speaker.say(RunRequested(run=cell.run, document=cell.document(model)))
    while journal(cell.run) not in await bus.stream_names():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(POLL_SECONDS)
    for number in range(cell.num_tasks):
        data = {"progress": round(cell.progress(number), 6)}
        await speaker.say(TaskSubmitted(run=cell.run, task=f"t{number}", env=ENV, data=data))
    await speaker.say(TasksEnded(run=cell.run))


async def _until_over(cell: Cell, speaker: Speaker, say: Callable[[str], None]) -> None:
    said = -1
    while await speaker.first(RunEnded, cell.run) is None:
        taken = await speaker.last(StepTaken, cell.run)
        if taken is not None and taken.step != said:
            said = taken.step
            say(f"step {taken.step}/{cell.steps}")
        await asyncio.sleep(POLL_SECONDS)


async def _until_judged(cell: Cell, bus: JetStreamBus) -> None:
    """The run is over when its training is; what its end cut off is judged a moment later, and its queues stay that long."""
    queue = queue_stream(Service.TRAJECTORY_MANAGER, cell.run)
    consumers = [consumer_name(Service.TRAJECTORY_MANAGER, str(shard)) for shard in range(cell.shards)]
    with suppress(SeamlessFlowError, TimeoutError):
        async with asyncio.timeout(JUDGE_SECONDS):
            while any([await bus.pending(queue, name) for name in consumers]):  # noqa: ASYNC110 - others empty it
                await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def _bus(url: str) -> AsyncIterator[JetStreamBus]:
    bus = await connect(url, name="harness", on_closed=lambda: None)
    try:
        yield bus
    finally:
        await bus.close()


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
async def _fleet(cell: Cell, nats_url: str, folder: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(cell, nats_url, folder)
    try:
        await fleet.start()
        yield fleet
    except SeamlessFlowError as wrong:
        raise RuntimeError(f"{cell.run}: {wrong}") from wrong
    finally:
        await fleet.kill()
