"""For people and programs that use SeamlessFlow: request a run, publish tasks, follow what happens.

async with Client.open("nats://127.0.0.1:4222") as client:
    await client.submit(TaskSubmitted(run="demo", task="t1", env="single", prompt="What is 2 + 2?"))
    async for event, time in client.follow("demo"):
        ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from .blobs import Store
from .bus.base import Bus, Record, StreamSpec
from .bus.jetstream import connect
from .codec import unpack_record
from .contracts import (
    Event,
    NodeStatus,
    RunRequested,
    RunState,
    RunStopRequested,
    Service,
    TasksEnded,
    TaskSubmitted,
)
from .contracts.fleet import Lease
from .contracts.routes import (
    CONTROL_STREAM,
    LEASES_BUCKET,
    NODES_BUCKET,
    RUNS_BUCKET,
    control_streams,
    inbox_prefix,
    journal,
    subject_of,
)
from .errors import MalformedMessage
from .run_config import RunConfig
from .runtime.speaker import Speaker
from .settings import Settings


class Client:
    """A connection for people; it can publish requests and tasks and read everything."""

    def __init__(self, bus: Bus, store: Store) -> None:
        self.bus, self.store = bus, store
        self._speaker = Speaker(bus, store)

    @classmethod
    @asynccontextmanager
    async def open(cls, nats_url: str, store_url: str = "memory://") -> AsyncIterator[Self]:
        """Connect and, at the end, close. Without ``store_url`` events above 64 KiB cannot be read.

        Where the server asks for keys, SEAMLESSFLOW_NKEY_SEED is ours.
        """
        bus = await connect(nats_url, name="client", inbox_prefix=inbox_prefix(Service.USER), nkey_seed=Settings().nkey_seed)
        try:
            yield cls(bus, Store(store_url))
        finally:
            await bus.close()

    async def request_run(self, run: str, config: RunConfig) -> bool:
        """Ask for a run; False when another one of this name was asked for before."""
        await self.bus.ensure_stream(_control())
        request = RunRequested(run=run, document=config.model_dump(mode="json"))
        stored = await self._speaker.say(request)
        if stored is not None and not stored.duplicate:
            return True
        # Perhaps our own, whose acknowledgement was lost.
        first = await self.bus.first(CONTROL_STREAM, subject_of(request))
        return first is not None and await self._speaker.open(first) == request

    async def stop_run(self, run: str, reason: str = "requested") -> None:
        """Ask for an orderly end."""
        await self._speaker.say(RunStopRequested(run=run, reason=reason))

    async def submit(self, task: TaskSubmitted) -> bool:
        """Publish a task; False when the journal saw this task id in the last ten minutes."""
        stored = await self._speaker.say(task)
        return stored is not None and not stored.duplicate

    async def end_tasks(self, run: str) -> None:
        """Say that no more tasks will come."""
        await self._speaker.say(TasksEnded(run=run))

    async def runs(self) -> list[str]:
        """Names of the runs whose journals exist."""
        return sorted(name[2:] for name in await self.bus.stream_names() if name.startswith(journal("")))

    async def events(self, run: str, *, follow: bool = False, start_seq: int = 1) -> AsyncIterator[tuple[Record, Event]]:
        """A run's journal in order, each event with its record (sequence, time, subject); malformed messages are left out."""
        async for record in self.bus.read(journal(run), start_seq=start_seq, follow=follow):
            try:
                yield record, await self._speaker.open(record)
            except MalformedMessage:
                continue  # its reader has dead-lettered it; the dead letter is an event of its own

    async def run_state(self, run: str) -> RunState | None:
        """Where the scheduler has got with a run; None while it has not seen the request."""
        entry = await (await self.bus.kv(RUNS_BUCKET)).get(run)
        return None if entry is None else unpack_record(RunState, entry.value)

    async def nodes(self) -> list[tuple[NodeStatus, Lease | None]]:
        """Who is there now, and what each node may do."""
        leases = {
            e.key: unpack_record(Lease, e.value) for e in await (await self.bus.kv(LEASES_BUCKET)).entries() if _is_node(e.key)
        }
        present = [unpack_record(NodeStatus, e.value) for e in await (await self.bus.kv(NODES_BUCKET)).entries()]
        return [(status, leases.get(status.node)) for status in sorted(present, key=lambda s: (s.node, s.service))]


def _is_node(key: str) -> bool:
    return "." not in key


def _control() -> StreamSpec:
    return next(spec for spec in control_streams() if spec.name == CONTROL_STREAM)
