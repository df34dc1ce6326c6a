"""One suite, both buses: every test that takes ``world`` runs on the memory bus and on a real nats-server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from seamlessflow.bus.base import Bus, ConsumerSpec, Delivery, Message, StreamSpec
from seamlessflow.bus.jetstream import JetStreamBus, connect
from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.bus.nats_server import EmbeddedServer

_run_numbers = itertools.count(1)


async def eventually(holds: Callable[[], bool], *, within_seconds: float = 8.0) -> None:
    """Waits until it holds; fails the test when it does not."""
    deadline = asyncio.get_running_loop().time() + within_seconds
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true in time"
        await asyncio.sleep(0.005)


class World:
    """A run of its own on one kind of bus: a journal, clients, and builders for what a test does not mention."""

    def __init__(self, kind: str, server: EmbeddedServer | None) -> None:
        self.kind = kind
        self.run = f"t{next(_run_numbers)}"
        self.journal = f"J_{self.run}"
        self._server = server
        self._memory = MemoryServer()
        self._clients: list[JetStreamBus | MemoryBus] = []
        self._ids = itertools.count(1)

    async def client(self, patience_seconds: float = 10.0) -> JetStreamBus | MemoryBus:
        bus: JetStreamBus | MemoryBus = MemoryBus(self._memory)
        if self._server is not None:
            bus = await connect(self._server.url, name="test", patience_seconds=patience_seconds)
        self._clients.append(bus)
        return bus

    async def with_journal(self) -> JetStreamBus | MemoryBus:
        bus = await self.client()
        await bus.ensure_stream(StreamSpec(self.journal, subjects=(f"sf.{self.run}.>",)))
        return bus

    async def with_queue(self, *, ack_wait_seconds: float = 10.0, prioritized: bool = False) -> JetStreamBus | MemoryBus:
        """A journal, a queue of everything under ``call``, and the consumer ``c`` of all of it."""
        bus = await self.with_journal()
        await bus.ensure_stream(self.queue_spec("call.>"))
        await bus.ensure_consumer(self.consumer_spec(ack_wait_seconds=ack_wait_seconds, prioritized=prioritized))
        return bus

    @property
    def queue(self) -> str:
        return f"Q_{self.run}"

    def queue_spec(self, *tails: str) -> StreamSpec:
        return StreamSpec(self.queue, source=self.journal, source_filters=tuple(self.subject(each) for each in tails))

    def consumer_spec(
        self, *, tail: str = "call.>", name: str = "c", ack_wait_seconds: float = 10.0, prioritized: bool = False
    ) -> ConsumerSpec:
        return ConsumerSpec(self.queue, name, (self.subject(tail),), ack_wait_seconds=ack_wait_seconds, prioritized=prioritized)

    def subject(self, tail: str) -> str:
        return f"sf.{self.run}.{tail}"

    def message(self, tail: str, payload: bytes = b"", *, message_id: str | None = None, after: int | None = None) -> Message:
        """``after``: the expected last sequence of the message's own subject."""
        return Message(self.subject(tail), payload, message_id or f"m{next(self._ids)}", expected_last_seq=after)

    async def publish_many(self, bus: Bus, count: int, tail: str = "call.x") -> list[bytes]:
        payloads = [b"%d" % number for number in range(count)]
        for start in range(0, count, 200):
            chunk = payloads[start : start + 200]
            await asyncio.gather(*(bus.publish(self.message(tail, payload)) for payload in chunk))
        return payloads

    async def until_pending(self, bus: Bus, count: int) -> None:
        """Waits until the consumer ``c`` has exactly so many; a queue follows its journal a little later."""
        async with asyncio.timeout(5):
            while await bus.pending(self.queue, "c") != count:
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        for bus in self._clients:
            await bus.close()


class Inbox:
    """A handler that acknowledges and remembers."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    async def __call__(self, delivery: Delivery) -> None:
        self.payloads.append(delivery.payload)
        await delivery.ack()


@pytest.fixture(scope="session")
def nats_server(nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path_factory.mktemp("nats")).start()
    yield server
    server.kill()


@pytest.fixture(params=["memory", "jetstream"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    server = request.getfixturevalue("nats_server") if request.param == "jetstream" else None
    it = World(request.param, server)
    yield it
    await it.close()


@pytest.fixture
async def fragile(own_server: EmbeddedServer) -> AsyncIterator[World]:
    """A world on a server that the test may kill."""
    it = World("jetstream", own_server)
    yield it
    await it.close()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture(name="eventually")
def _eventually() -> Callable[..., object]:
    return eventually
