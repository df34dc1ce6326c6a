"""Leases of readers on both buses: there while somebody reads, gone afterwards, whoever died and whatever clocks say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from seamlessflow.bus.base import Bus
from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.codec import pack_record
from seamlessflow.contracts import WeightsHead
from seamlessflow.contracts.routes import READERS_BUCKET, WEIGHTS_BUCKET
from seamlessflow.errors import Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import WEIGHTS_FILE, publish_folder, reader_leases, weights_path
from seamlessflow.weights.reader_leases import Reader, read_head, read_readings
from seamlessflow.weights.retention import NEWEST, Collection

RUN = "demo"


@pytest.fixture(params=["memory", "jetstream"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    bus: Bus = MemoryBus()
    if request.param == "jetstream":
        bus = await connect(request.getfixturevalue("own_server").url, name="readers")
    yield bus
    await bus.close()


def head_of(version: int) -> WeightsHead:
    return WeightsHead(weights_version=version, step=version, path=weights_path(RUN, version), epoch=0)


async def move_head(bus: Bus, version: int) -> WeightsHead:
    await (await bus.kv(WEIGHTS_BUCKET)).put(RUN, pack_record(head_of(version)))
    return head_of(version)


async def leased(bus: Bus) -> list[int]:
    return [each.weights_version for each in (await read_readings(bus, RUN)).reads]


async def test_a_lease_is_there_while_somebody_reads_and_not_a_moment_longer(bus: Bus):
    """With its reader's name, for people; several read side by side, of several runs."""
    head = await move_head(bus, 3)
    async with (
        Reader(bus, RUN, "w1").lease(head) as one,
        Reader(bus, RUN, "w2").lease(head) as other,
        Reader(bus, "other", "w3").lease_one(9, "p"),
    ):
        assert one == other == head
        reads = (await read_readings(bus, RUN)).reads
        assert [(each.reader, each.path) for each in reads] == [("w1", head.path), ("w2", head.path)]

    assert await leased(bus) == []


async def test_a_reader_that_fails_or_is_cancelled_lets_go(bus: Bus):
    """At once: nobody waits for its lease to run out."""
    head = await move_head(bus, 3)
    with pytest.raises(ZeroDivisionError):
        async with Reader(bus, RUN, "w1").lease(head):
            raise ZeroDivisionError

    async def reads_for_ever() -> None:
        async with Reader(bus, RUN, "w1").lease(head):
            await asyncio.Event().wait()

    task = asyncio.create_task(reads_for_ever())
    async with asyncio.timeout(10):
        while not await leased(bus):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await leased(bus) == []


async def test_a_reader_that_died_is_forgotten_and_a_slow_one_is_not(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    """The server counts a lease's time from its last renewal; how long it was held is by the reader's own clock."""
    monkeypatch.setattr(reader_leases, "LEASE_SECONDS", 1)
    head = await move_head(bus, 3)
    with monkeypatch.context() as patched:
        patched.setattr(reader_leases, "RENEW_SECONDS", 999.0)
        async with Reader(bus, RUN, "dead").lease(head), asyncio.timeout(10):
            while await leased(bus):  # it is not renewed, as if its process were gone
                await asyncio.sleep(0.05)
    monkeypatch.setattr(reader_leases, "RENEW_SECONDS", 0.2)
    async with Reader(bus, RUN, "slow").lease(head):
        for _ in range(8):
            await asyncio.sleep(0.3)
            assert await leased(bus) == [3]
        (slow,) = (await read_readings(bus, RUN)).reads
        assert 1.0 < slow.held_seconds < 60.0


async def test_a_lease_outlives_the_server_and_is_renewed_after_it(own_server: EmbeddedServer, monkeypatch):
    """Killed and started again: who collects next sees who reads."""
    monkeypatch.setattr(reader_leases, "RENEW_SECONDS", 0.1)
    bus = await connect(own_server.url, name="readers")
    async with Reader(bus, RUN, "w1").lease(await move_head(bus, 3)):
        own_server.kill()
        own_server.start()
        assert await leased(bus) == [3]
        before = (await read_readings(bus, RUN)).reads[0].held_seconds
        async with asyncio.timeout(20):
            while (await read_readings(bus, RUN)).reads[0].held_seconds == before:
                await asyncio.sleep(0.05)
    await bus.close()


async def test_a_version_that_slipped_out_before_its_lease_is_exchanged_for_the_newest(bus: Bus):
    """A collector may have looked between the two; what is among the newest still, nobody can be removing."""
    before = await move_head(bus, 3)
    await move_head(bus, 2 + NEWEST)
    async with Reader(bus, RUN, "w1").lease(before) as given:
        assert given == before

    now = await move_head(bus, 3 + NEWEST)
    async with Reader(bus, RUN, "w1").lease(before) as given:
        assert given == now
        assert await leased(bus) == [now.weights_version]
    assert await read_head(bus, RUN) == now


async def test_a_server_that_gives_no_lease_keeps_nobody_from_reading(monkeypatch: pytest.MonkeyPatch):
    """Permissions of before there were leases: said once, and not asked for again for a while."""
    bus, asked = MemoryBus(), []
    head, kv = await move_head(bus, 3), bus.kv

    async def guarded(bucket: str):  # type: ignore[no-untyped-def]
        if bucket == READERS_BUCKET:
            asked.append(bucket)
            await asyncio.Event().wait()
        return await kv(bucket)

    monkeypatch.setattr(bus, "kv", guarded)
    monkeypatch.setattr(reader_leases, "SAY_SECONDS", 0.05)
    reader = Reader(bus, RUN, "w1")
    with capture_logs() as logs:
        for _ in range(3):
            async with reader.lease(head) as given:
                assert given == head

    assert len(asked) == 1
    assert [line["event"] for line in logs] == ["weights.read_without_lease"]


OLD_PERMISSIONS = """
authorization { users = [
  { user: admin, password: pw }
  { user: worker, password: pw, permissions: {
      publish: ["$KV.WEIGHTS.>", "$JS.API.DIRECT.GET.>"], subscribe: ["_INBOX_worker.>"]
  } }
] }
"""


@pytest.mark.parametrize("is_made", [True, False], ids=["a bucket", "no bucket"])
async def test_a_real_server_with_older_permissions_does_not_either(
    nats_binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made: bool
):
    """Whether or not somebody made the bucket already; a word about what was missed is lost, and nothing else."""
    monkeypatch.setattr(reader_leases, "SAY_SECONDS", 0.3)
    server = EmbeddedServer(tmp_path / "guarded", extra_config=OLD_PERMISSIONS).start()
    places = {user: f"nats://{user}:pw@127.0.0.1:{server.port}" for user in ("admin", "worker")}
    admin = await connect(places["admin"], name="admin")
    head = await move_head(admin, 3)
    if is_made:
        await admin.kv(READERS_BUCKET)
    worker = await connect(places["worker"], name="worker", inbox_prefix="_INBOX_worker")
    async with asyncio.timeout(10):
        async with Reader(worker, RUN, "w1").lease(head) as given:
            assert given == head
        await Reader(worker, RUN, "w1").missed(3, "p", "damaged")

    assert not is_made or await read_readings(admin, RUN) == reader_leases.Readings((), ())
    await worker.close()
    await admin.close()
    server.kill()


async def test_what_could_not_be_had_is_said_until_it_was_had(bus: Bus):
    """It is no lease, and its reader has one word at a time."""
    reader = Reader(bus, RUN, "w1")
    await reader.missed(4, "p4", "a delta is damaged")
    await reader.missed(5, "p5", "")

    (missed,) = (await read_readings(bus, RUN)).missed
    assert (missed.weights_version, missed.path, missed.reader, missed.missed) == (5, "p5", "w1", "unknown")
    assert await leased(bus) == []
    await reader.got()
    assert (await read_readings(bus, RUN)).missed == ()


async def test_a_word_that_cannot_be_read_may_be_a_lease(bus: Bus):
    """Nothing is removed, and its key is named; another run's is its own matter."""
    await (await bus.kv(READERS_BUCKET)).put(f"{RUN}.reads.x", b"\xc1")

    with pytest.raises(Unavailable, match=r"key demo\.reads\.x of bucket READERS cannot be read"):
        await read_readings(bus, RUN)
    assert await leased_of(bus, "other") == []


async def leased_of(bus: Bus, run: str) -> list[int]:
    return [each.weights_version for each in (await read_readings(bus, run)).reads]


def publish(store: Store, version: int, attempt: str = "") -> str:
    path = weights_path(RUN, version, attempt)
    publish_folder(store, path, {WEIGHTS_FILE: b"tensors"}, {"weights_version": version, "base": None})
    return path


async def test_what_is_read_stays_in_the_store_until_it_was_read(store: Store):
    """A slow reader, ten versions later; a dead writer's folder goes, one that is being written does not."""
    bus, collection = MemoryBus(), Collection(store, RUN)
    for version in range(3):
        publish(store, version)
    store.write(f"{weights_path(RUN, 3, 'dead')}/{WEIGHTS_FILE}", b"half")
    head = await move_head(bus, 2)
    async with Reader(bus, RUN, "slow").lease(head):
        for version in range(3, 13):
            publish(store, version, "a")
            store.write(f"{weights_path(RUN, version + 1, 'b')}/{WEIGHTS_FILE}", b"half")
            await move_head(bus, version)
            collection.collect(version, (await read_readings(bus, RUN)).reads)
            assert store.read(f"{head.path}/{WEIGHTS_FILE}") == b"tensors"

    there = store.folders(f"{RUN}/weights")
    assert there == ["00000002", *(f"{each:08d}-{who}" for each in range(9, 13) for who in "ab"), "00000013-b"]
    assert collection.collect(12, (await read_readings(bus, RUN)).reads) == [head.path]
    assert collection.collect(12, ()) == []


def test_two_that_remove_the_same_are_not_in_each_others_way(store: Store):
    """A trainer and somebody's `weights gc`."""
    for version in range(9):
        publish(store, version)
    one, other = Collection(store, RUN), Collection(store, RUN)
    one.look()
    other.look()

    assert len(one.collect(8, ())) == 5
    other.remove(weights_path(RUN, 0))
    assert other.collect(8, ()) == []
    assert len(store.folders(f"{RUN}/weights")) == NEWEST


def test_a_folder_whose_name_only_looks_like_a_number_is_no_version(store: Store):
    """Whoever put it there: it is in nobody's way, and stays."""
    store.write(f"{RUN}/weights/²-a/x", b"")
    store.write(f"{weights_path(RUN, 3)}/x", b"")

    assert list(Collection(store, RUN).look()) == [3]
