"""RoleAssigned events of written leases: timelines and people read them long after."""

import asyncio

from seamlessflow.bus.base import Message, Stored
from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.client import Client
from seamlessflow.codec import unpack_record
from seamlessflow.contracts import Lease, Role, RoleAssigned
from seamlessflow.contracts.routes import LEASES_BUCKET
from seamlessflow.contracts.streams import control_streams, run_streams
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.runtime.journal import Journal
from seamlessflow.store.large_payloads import Store
from seamlessflow_scheduler import leases as role_words
from seamlessflow_scheduler.leases import LeaseBook
from seamlessflow_scheduler.policy import Assignment


async def test_a_node_that_goes_to_another_run_leaves_the_first_one():
    """Idle is of the run, and to be used; left is not."""
    bus, store = MemoryBus(), Store("memory://lease-words")
    for spec in (*control_streams(), *run_streams("r1"), *run_streams("r2")):
        await bus.ensure_stream(spec)
    book = LeaseBook(bus, Journal(bus, store))
    for run, role in (("r1", Role.ROLLOUT), ("r1", Role.IDLE), ("r2", Role.ROLLOUT), (None, Role.IDLE)):
        await book.write(Assignment("n", run, role, "because"), 0.0)

    published = {
        run: [(event.role, event.left) async for _, event in Client(bus, store).events(run) if isinstance(event, RoleAssigned)]
        for run in ("r1", "r2")
    }
    assert published["r1"] == [(Role.ROLLOUT, False), (Role.IDLE, False), (Role.IDLE, True)]
    assert published["r2"] == [(Role.ROLLOUT, False), (Role.IDLE, True)]


async def test_a_journal_that_does_not_answer_hears_of_leases_later_and_keeps_no_other_run_waiting(monkeypatch):
    """In order, once it answers."""
    monkeypatch.setattr(role_words, "PATIENCE_SECONDS", 0.05)
    bus, store = MemoryBus(), Store("memory://lease-late")
    for spec in (*control_streams(), *run_streams("away"), *run_streams("there")):
        await bus.ensure_stream(spec)
    answers, publish = asyncio.Event(), MemoryBus.publish

    async def patient(self: MemoryBus, message: Message) -> Stored:
        if message.subject.startswith(subject_filter(RoleAssigned, run="away").partition("*")[0]):
            await answers.wait()
        return await publish(self, message)

    monkeypatch.setattr(MemoryBus, "publish", patient)
    book = LeaseBook(bus, Journal(bus, store))
    async with asyncio.timeout(1):
        for epoch in range(20):
            await book.write(Assignment("a", "away", Role.ROLLOUT if epoch % 2 else Role.TRAIN, "because"), 0.0)
        await book.write(Assignment("b", "there", Role.ROLLOUT, "because"), 0.0)

    async def published(run: str) -> list[int]:
        return [event.epoch async for _, event in Client(bus, store).events(run) if isinstance(event, RoleAssigned)]

    assert (await published("away"), await published("there")) == ([], [1])
    answers.set()
    async with asyncio.timeout(1):
        while len(await published("away")) < 20:
            await asyncio.sleep(0.001)
    assert await published("away") == list(range(1, 21))


async def test_a_lease_that_cannot_be_read_is_replaced_by_the_next_one_and_holds_up_no_other():
    """Also for a scheduler that never saw what stood there; epochs go on."""
    bus, store = MemoryBus(), Store("memory://lease-junk")
    await bus.ensure_stream(run_streams("r1")[0])
    bucket = await bus.kv(LEASES_BUCKET)
    for book in (LeaseBook(bus, Journal(bus, store)), LeaseBook(bus, Journal(bus, store))):
        await book.load(0.0)
        for node in ("n", "other"):
            await book.write(Assignment(node, "r1", Role.ROLLOUT, "because"), 0.0)
        epoch = book.leases["n"].lease.epoch
        await bucket.put("n", b"\xff\x00junk")

        await book.load(1.0)
        assert book.leases["n"].lease.run is None and book.leases["other"].lease.run == "r1"
        await book.write(Assignment("n", "r1", Role.IDLE, "because"), 1.0)
        entry = await bucket.get("n")
        assert entry is not None and unpack_record(Lease, entry.value).epoch > epoch
        await bucket.put("n", b"\xff\x00junk")
