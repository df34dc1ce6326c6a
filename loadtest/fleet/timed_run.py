"""One cell, played: a nats-server, the services in a few processes, a run from its request to its end, and its journal.

    nats-server │ scheduler │ manager │ players │ workers… │ trainers        processes; devices are objects of the last two
    RunRequested ─▶ tasks ─▶ … ─▶ RunEnded ─▶ the journal, read whole ─▶ figures

Churn: now and then a node's worker and trainer go as killed processes do, and a new node comes.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from seamlessflow.bus.jetstream import JetStreamBus, connect
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.contracts import Event, RunEnded, RunRequested, Service, StepTaken, TasksEnded, TaskSubmitted
from seamlessflow.contracts.streams import consumer_name, control_streams, journal_stream, queue_stream
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.models.tiny import make_tiny
from seamlessflow.runtime import Journal
from seamlessflow.store.large_payloads import Store

from .timed_cell import ENV, Cell
from .timed_fleet import fleet_of

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


async def play(
    cell: Cell,
    *,
    report: Callable[[str], None] = lambda _: None,
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
        fleet = await stack.enter_async_context(fleet_of(cell, server.url, folder))
        began = time.monotonic()
        journal = Journal(bus, Store(f"file://{folder}/store"))
        await _request(cell, bus, journal, str(_tiny_model(folder / "tiny")))
        churn = asyncio.create_task(fleet.churn(churn_seconds)) if churn_seconds else None
        try:
            async with asyncio.timeout(limit_seconds):
                await _until_over(cell, journal, report)
        finally:
            if churn is not None:
                churn.cancel()
        await _until_judged(cell, bus)
        wall = time.monotonic() - began
        processes = await fleet.end()
        events = [(await journal.open(record), record.time) async for record in bus.read(journal_stream(cell.run))]
        return Played(cell, events, wall, processes, fleet.died)


def _tiny_model(folder: Path) -> Path:
    """Untrained: what is used of it are its tokenizer and its template."""
    import transformers  # seconds, which no process but this one needs to spend

    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return make_tiny(folder, 0, warm_start_steps=0)


async def _request(cell: Cell, bus: JetStreamBus, journal: Journal, model: str) -> None:
    for stream in control_streams():
        await bus.ensure_stream(stream)
    await journal.publish(RunRequested(run=cell.run, document=cell.document(model)))
    while journal_stream(cell.run) not in await bus.stream_names():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(POLL_SECONDS)
    for number in range(cell.num_tasks):
        data = {"progress": round(cell.progress(number), 6)}
        await journal.publish(TaskSubmitted(run=cell.run, task=f"t{number}", env=ENV, data=data))
    await journal.publish(TasksEnded(run=cell.run))


async def _until_over(cell: Cell, journal: Journal, report: Callable[[str], None]) -> None:
    said = -1
    while await journal.first(RunEnded, cell.run) is None:
        taken = await journal.last(StepTaken, cell.run)
        if taken is not None and taken.step != said:
            said = taken.step
            report(f"step {taken.step}/{cell.steps}")
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
