"""Who publishes a number, what is published at all, and what of the store is read and written for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from seamlessflow.bus.base import Bus, KeyValue
from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.checkpoints.commit_claim import CommitClaim
from seamlessflow.codec import pack_record, unpack_record
from seamlessflow.contracts import Role, RunStopRequested, TrainerStarted, WeightsHead, WeightsPublished
from seamlessflow.contracts.routes import READERS_BUCKET, WEIGHTS_BUCKET
from seamlessflow.contracts.streams import run_streams
from seamlessflow.errors import BadInput, Refused, Unavailable
from seamlessflow.runtime import Journal
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, folders_of_versions
from seamlessflow.weights.manifest import DELTA_FILE
from seamlessflow.weights.reader_leases import read_head
from seamlessflow.weights.staleness import VersionSteps
from seamlessflow_trainer import blocking_work
from seamlessflow_trainer.learner.learner import Learner
from seamlessflow_trainer.weights import publisher as publishing
from seamlessflow_trainer.weights import version_files
from seamlessflow_trainer.weights.publisher import WeightsPublisher
from seamlessflow_trainer.weights.version_files import MOST_MISSES, DeltaVersionBuilder, FiniteCheck
from tests.services.trainer.test_trainer_versions import Weights
from tests.services.trainer.trainer_world import RUN, World, by_index, run_document


@pytest.fixture(params=["memory", "jetstream"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    bus: Bus = MemoryBus()
    if request.param == "jetstream":
        bus = await connect(request.getfixturevalue("own_server").url, name="publishing")
    for stream in run_streams(RUN, max_bytes=-1):
        await bus.ensure_stream(stream)
    yield bus
    await bus.close()


def publisher_of(bus: Bus, store: Store, *, full_every: int = 10) -> WeightsPublisher:
    journal = Journal(bus, store)
    claim = CommitClaim(bus, journal, RUN, "test")  # not taken: good as long as there is none
    return WeightsPublisher(bus, store, journal, claim, RUN, VersionSteps(), torch.bfloat16, full_every=full_every)


async def test_of_two_that_write_one_number_the_journal_and_the_head_name_one_folder(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that said it first, slow as it may be: the other stops, and has not touched the head."""
    store = Store(f"file://{tmp_path}")
    slow, quick = publisher_of(bus, store), publisher_of(bus, store)
    await slow.join()
    await quick.join()
    move, said, may_move = slow._move_head, asyncio.Event(), asyncio.Event()

    async def late(head: WeightsHead) -> None:
        said.set()
        await may_move.wait()
        await move(head)

    monkeypatch.setattr(slow, "_move_head", late)
    first = asyncio.create_task(slow.publish({"w": torch.zeros(4)}, step=3, epoch=1))
    async with asyncio.timeout(20):
        await said.wait()
    with pytest.raises(Refused, match="version 0 of run r was published by another trainer"):
        await quick.publish({"w": torch.ones(4)}, step=0, epoch=1)
    assert await read_head(bus, RUN) is None
    may_move.set()
    published = await first

    journal = await Journal(bus, store).first(WeightsPublished, RUN, weights_version=0)
    head = await read_head(bus, RUN)
    assert journal is not None and head is not None
    assert (journal.path, journal.step) == (head.path, head.step) == (published.path, 3)


async def test_a_message_of_ours_that_was_stored_twice_stops_nobody(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its acknowledgement was lost: the journal names our folder."""
    store = Store(f"file://{tmp_path}")
    publisher = publisher_of(bus, store)
    publish = bus.publish

    async def twice(message):  # type: ignore[no-untyped-def]
        await publish(message)
        return await publish(message)

    monkeypatch.setattr(bus, "publish", twice)

    published = await publisher.publish({"w": torch.zeros(4)}, step=0, epoch=1)
    assert (head := await read_head(bus, RUN)) is not None and head.path == published.path


async def test_a_head_that_cannot_be_read_is_made_up_from_the_journal_and_replaced(bus: Bus, tmp_path: Path) -> None:
    """Readers have the newest published version meanwhile; whoever publishes next puts it right, joined before or after."""
    store = Store(f"file://{tmp_path}")
    publisher = publisher_of(bus, store)
    first = await publisher.publish({"w": torch.zeros(4)}, step=3, epoch=1)
    await (await bus.kv(WEIGHTS_BUCKET)).put(RUN, b"rubbish")

    made_up = await read_head(bus, RUN)
    assert made_up is not None
    assert (made_up.weights_version, made_up.step, made_up.path) == (first.weights_version, 3, first.path)
    second = await publisher.publish({"w": torch.ones(4)}, step=4, epoch=1)
    assert (head := await read_head(bus, RUN)) is not None and head.path == second.path
    await (await bus.kv(WEIGHTS_BUCKET)).put(RUN, b"rubbish")
    successor = publisher_of(bus, store)
    await successor.join()
    third = await successor.publish({"w": torch.ones(4)}, step=4, epoch=2)

    entry = await (await bus.kv(WEIGHTS_BUCKET)).get(RUN)
    assert entry is not None and third.weights_version == 2
    assert unpack_record(WeightsHead, entry.value).path == third.path


async def test_a_head_that_a_late_trainer_moved_is_moved_on(bus: Bus, tmp_path: Path) -> None:
    """It had published under the newest claim of its time, and moved the head after its successor joined."""
    store = Store(f"file://{tmp_path}")
    late, successor = publisher_of(bus, store), publisher_of(bus, store)
    await late.join()
    published = await late.publish({"w": torch.zeros(4)}, step=0, epoch=1)
    await successor.join()
    stale = WeightsHead(weights_version=published.weights_version, step=0, path=published.path, epoch=9)
    await (await bus.kv(WEIGHTS_BUCKET)).put(RUN, pack_record(stale))

    newest = await successor.publish({"w": torch.ones(4)}, step=1, epoch=2)
    assert (head := await read_head(bus, RUN)) is not None and head.path == newest.path


BROKEN = [float("nan"), float("inf"), float("-inf"), 3.4028e38]
"""The last one is a float32, and rounds to infinity in bfloat16."""


@pytest.mark.parametrize("value", BROKEN, ids=str)
@pytest.mark.parametrize("full_every", [1, 9])
async def test_weights_that_are_no_numbers_are_refused_before_a_byte_is_written(
    tmp_path: Path, value: float, full_every: int
) -> None:
    """In full and as changes, naming the tensor: the head stays, and what is good again goes on."""
    bus, weights = MemoryBus(), Weights(tmp_path)
    for stream in run_streams(RUN, max_bytes=-1):
        await bus.ensure_stream(stream)
    publisher = publisher_of(bus, weights.store, full_every=full_every)
    await publisher.publish(weights.live, step=0, epoch=0)
    kept = float(weights.live["body"][7, 7])
    weights.live["body"][7, 7] = value

    with pytest.raises(BadInput, match="weights version 1: tensor body has values"):
        await publisher.publish(weights.live, step=1, epoch=0)
    assert list(folders_of_versions(weights.store, f"{RUN}/weights")) == [0]
    weights.live["body"][7, 7] = kept
    await publisher.publish(weights.live, step=1, epoch=0)


def test_float32_weights_that_are_compared_no_more_are_looked_at_all_the_same(tmp_path: Path) -> None:
    """As in every other mode."""
    weights = Weights(tmp_path, dtype=torch.float32, full_every=9)
    for _ in range(MOST_MISSES + 2):
        weights.publish()
        weights.step(1e-2)
    weights.live["norm"][-1] = float("nan")

    with pytest.raises(BadInput, match="tensor norm has values that are NaN or infinite"):
        weights.publish()


def test_only_what_was_infinite_from_the_start_may_be() -> None:
    """A mask that is kept as a buffer; no NaN, in no weights, and nothing that the served dtype has no value for."""
    mask = torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf"))
    weights = {"mask": mask, "w": torch.ones(3), "none": torch.ones(0), "ids": torch.arange(3)}
    numbers = FiniteCheck(torch.float16)
    numbers.check(weights, "first")
    numbers.check(weights, "second")

    for name, value in (("w", float("inf")), ("w", 70000.0), ("mask", float("nan"))):
        with pytest.raises(BadInput, match=f"third: tensor {name} has values"):
            numbers.check(weights | {name: torch.tensor([0.0, value])}, "third")
    with pytest.raises(BadInput, match=r"first: tensor w has values too large for torch\.float16"):
        FiniteCheck(torch.float16).check({"w": torch.tensor([-70000.0])}, "first")
    with pytest.raises(BadInput, match="first: tensor w has values that are NaN"):
        FiniteCheck(torch.float16).check({"w": torch.tensor([float("nan"), float("inf")])}, "first")


async def test_a_step_that_makes_no_numbers_stops_the_run_with_a_reason(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process fails, as it stands at no step; nothing of it was published, and workers keep what they have."""
    world = await World(tmp_path, run_document(tiny_llama)).open()
    await world.lease(Role.TRAIN)
    with pytest.raises(ExceptionGroup) as failed:
        async with world.trainer() as trainer:
            await world.hears(TrainerStarted)
            live = Learner.weights
            monkeypatch.setattr(Learner, "weights", lambda self: {n: t * float("nan") for n, t in live(self).items()})
            policy = await world.policy()
            for name in "ab":
                await world.answer(name, by_index(), policy=policy)
            assert trainer.user is not None
            await asyncio.wait({trainer.user}, timeout=20)  # asked to leave before it has failed, it would end well

    record = await world.bus.last("CTL", f"sf.ctl.run.{RUN}.stop")
    assert record is not None
    stop = await world.journal.open(record)
    assert isinstance(stop, RunStopRequested) and "values that are NaN or infinite" in stop.reason
    assert failed.group_contains(BadInput)
    assert [p.weights_version for p in await world.heard(WeightsPublished)] == [0]
    assert (await world.head()).weights_version == 0


async def test_a_manifest_is_read_once_however_often_versions_are_removed(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not change."""
    weights = Weights(tmp_path)
    publisher, read, reads = publisher_of(bus, weights.store, full_every=4), weights.store.read, list[str]()

    def counted(path: str) -> bytes:
        reads.append(path)
        return read(path)

    for step in range(12):
        await publisher.publish(weights.live, step=step, epoch=0)
        weights.step()
        with monkeypatch.context() as patched:
            patched.setattr(weights.store, "read", counted)
            await publisher.collect()

    assert reads and len(reads) == len(set(reads)) and all(path.endswith(MANIFEST) for path in reads)
    assert list(folders_of_versions(weights.store, f"{RUN}/weights")) == [8, 9, 10, 11]
    await publisher.collect()
    there = folders_of_versions(weights.store, f"{RUN}/weights")
    assert publisher._collection._known.keys() <= {path for paths in there.values() for path in paths}


async def test_a_delta_that_does_not_arrive_at_once_uploads_no_full_file_twice(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The small file comes first, and is read back before the large one is written."""
    monkeypatch.setattr(blocking_work, "RETRY_SECONDS", 0.0)
    weights = Weights(tmp_path)
    publisher = publisher_of(bus, weights.store, full_every=2)
    for step in range(2):
        await publisher.publish(weights.live, step=step, epoch=0)
        weights.step()
    read, write, written, failures = weights.store.read_range, weights.store.write_chunks, list[str](), [Unavailable("away")]

    def once_away(path: str, start: int, end: int) -> bytes:
        if failures:
            raise failures.pop()
        return read(path, start, end)

    def noted(path, chunks):  # type: ignore[no-untyped-def]
        written.append(path.rsplit("/", 1)[1])
        return write(path, chunks)

    monkeypatch.setattr(weights.store, "read_range", once_away)
    monkeypatch.setattr(weights.store, "write_chunks", noted)
    await publisher.publish(weights.live, step=2, epoch=0)

    assert not failures and written == [DELTA_FILE, DELTA_FILE, WEIGHTS_FILE]


def test_weights_that_promise_no_delta_are_never_held_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """float32, or a version that nothing can be built on: the copy before is let go of before there is another."""
    weights, copies, held = Weights(tmp_path, dtype=torch.float32, full_every=9), version_files.host_copies, list[bool]()

    def noted(tensors, dtype):  # type: ignore[no-untyped-def]
        if any(tensor.numel() > version_files.SAMPLE_VALUES for tensor in tensors.values()):
            held.append(bool(weights.maker._last))
        return copies(tensors, dtype)

    monkeypatch.setattr(version_files, "host_copies", noted)
    weights.publish()
    weights.step(1e-2)
    weights.publish()
    weights.maker = DeltaVersionBuilder(torch.float32, 9)
    weights.publish(is_said=False)
    weights.publish()

    assert held == [False] * 4


async def test_a_server_that_does_not_tell_who_reads_holds_up_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is older than the readers' bucket, say: versions are published, and none is removed."""
    bus, store = MemoryBus(), Store(f"file://{tmp_path}")
    for stream in run_streams(RUN, max_bytes=-1):
        await bus.ensure_stream(stream)
    publisher, kv = publisher_of(bus, store), bus.kv
    await publisher.join()

    async def guarded(bucket: str) -> KeyValue:
        return await (asyncio.Event().wait() if bucket == READERS_BUCKET else kv(bucket))  # type: ignore[misc,return-value]

    monkeypatch.setattr(bus, "kv", guarded)
    monkeypatch.setattr(publishing, "LOOK_SECONDS", 0.05)
    async with asyncio.timeout(10):
        for step in range(6):
            await publisher.publish({"w": torch.full((8,), float(step))}, step=step, epoch=1)
            with pytest.raises(Unavailable, match="bucket READERS"):
                await publisher.collect()

    assert len(store.folders(f"{RUN}/weights")) == 6
