"""A worker whose weights come from an S3 server that misbehaves: it samples on with the last good version and says so."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from structlog.testing import capture_logs

from seamlessflow.contracts import SegmentSampled, WeightsHead
from seamlessflow.errors import Unavailable
from seamlessflow.store import object_store
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import WEIGHTS_FILE, download, publish_folder, weights_path
from seamlessflow.weights.reader_leases import read_readings
from seamlessflow_rollout_worker.config import WorkerSettings
from seamlessflow_rollout_worker.weights.local_versions import PARTS, LocalVersions
from tests.services.rollout_worker import rollout_world
from tests.services.rollout_worker.rollout_world import RUN, World
from tests.store import fault_proxy as faults
from tests.store.conftest import impatient_proxy, proxy, s3_url  # noqa: F401 (fixtures)
from tests.store.fault_proxy import FaultProxy

BAD, GOOD = weights_path(RUN, 1), 2


@pytest.fixture
def far(world: World, impatient_proxy: FaultProxy, s3_url: str, monkeypatch) -> World:  # noqa: F811
    """The world with its store behind the proxy."""
    monkeypatch.setenv("SEAMLESSFLOW_STORE_CALL_SECONDS", "1.0")
    monkeypatch.setattr(object_store, "MOST_READ_BYTES", 0)
    monkeypatch.setattr(rollout_world, "WorkerSettings", lambda **given: WorkerSettings(**given | {"fetch_seconds": 60.0}))
    monkeypatch.setattr(download, "PAUSES_SECONDS", (0.01, 0.02))
    world.store = Store(s3_url)
    return world


@pytest.fixture
def another_disk(monkeypatch) -> None:
    """Where the store is: nothing in it can be linked."""
    monkeypatch.setattr(object_store.ObjectStore, "link", lambda *_: False)


TROUBLES: dict[str, faults.Fault] = {
    "hangs": faults.hang,
    "is cut in the middle": faults.cut,
    "has internal errors": faults.refuse(500, faults.INTERNAL_ERROR),
    "throttles": faults.refuse(503, faults.SLOW_DOWN),
    "gives half of an object": faults.truncate,
    "gives other bytes": faults.flip,
    "lost the object": faults.refuse(404, "NoSuchKey"),
    "refuses our key": faults.refuse(403, "AccessDenied"),
    "closes connections": faults.close,
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_version_that_cannot_be_had_stops_nobody(far: World, proxy: FaultProxy, trouble: str):  # noqa: F811
    """What is asked meanwhile is answered with the old version; the skip is said, with its culprit; the next one is taken."""
    worker = await far.ready(by_itself=True)
    proxy.plan(TROUBLES[trouble], path=BAD)
    await asyncio.to_thread(publish, far.store, 1)
    with capture_logs() as logs:
        await far.move_head(1)
        await far.until(lambda: any(line["event"] == "weights.skipped" for line in logs), seconds=20)
        await far.ask("c1")
        await far.until_acked()
    skipped = next(line for line in logs if line["event"] == "weights.skipped")
    assert (skipped["culprit"], skipped["sampling_with"], skipped["weights_version"]) == ("object store", 0, 1)
    assert {segment.weights_version for segment in await far.said(SegmentSampled)} == {0}
    assert not any(call.startswith("load") for call in worker.engine.calls)

    await asyncio.to_thread(publish, far.store, GOOD)
    await far.move_head(GOOD)
    await far.until(lambda: worker.engine.weights_version == GOOD, seconds=20)
    assert worker.engine.loaded == {"w": [float(GOOD)] * 2}


async def test_a_store_that_goes_away_and_comes_back_costs_only_time(far: World, proxy: FaultProxy):  # noqa: F811
    """The same version is taken, without a new announcement."""
    worker = await far.ready(by_itself=True)
    await asyncio.to_thread(publish, far.store, 1)
    proxy.is_away = True
    with capture_logs() as logs:
        await far.move_head(1)
        await far.until(lambda: any(line["event"] == "weights.skipped" for line in logs), seconds=20)
    await far.ask("c1")
    await far.until_acked()
    assert worker.engine.weights_version == 0

    proxy.heal()
    await far.until(lambda: worker.engine.weights_version == 1, seconds=20)


@pytest.mark.usefixtures("another_disk")
async def test_a_full_disk_is_said_and_healed_by_room(world: World, monkeypatch):
    """At the write itself; the engine never sees what was written of it."""
    worker, write, is_full = await world.ready(by_itself=True), os.pwrite, [True]

    def written(descriptor: int, content: memoryview, at: int) -> int:
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content, at)

    monkeypatch.setattr(os, "pwrite", written)
    with capture_logs() as logs:
        await world.publish_weights(1)
        await world.until(lambda: any(line["event"] == "weights.skipped" for line in logs))
    skipped = next(line for line in logs if line["event"] == "weights.skipped")
    assert "No space left on device" in skipped["reason"]
    assert (skipped["culprit"], skipped["sampling_with"]) == ("disk of this machine", 0)
    assert (await read_readings(world.bus, RUN)).missed == ()  # the trainer cannot help
    await world.ask("c1")
    await world.until_acked()
    assert worker.engine.weights_version == 0

    is_full[0] = False
    await world.until(lambda: worker.engine.weights_version == 1)


async def test_a_head_that_goes_back_loads_nothing(world: World):
    """A version number is never used twice, and an older one never takes the place of a newer; it is said, once."""
    worker = await world.ready(by_itself=True)
    for version in (1, 2):
        await world.publish_weights(version)
        await world.until(lambda version=version: worker.engine.weights_version == version)
    with capture_logs() as logs:
        await world.move_head(1)
        await world.ask("c1")
        await world.until_acked()
        await world.until(lambda: any(line["event"] == "weights.head_went_back" for line in logs))
        await asyncio.sleep(0.2)  # several more looks at the head

    (said,) = [line for line in logs if line["event"] == "weights.head_went_back"]
    assert (said["log_level"], said["weights_version"], said["newest_here"]) == ("warning", 1, 2)
    assert [call for call in worker.engine.calls if call.startswith("load")] == ["load 1", "load 2"]
    assert {segment.weights_version for segment in await world.said(SegmentSampled)} == {2}


@pytest.mark.usefixtures("another_disk")
def test_a_worker_that_starts_again_goes_on_with_what_it_had_fetched(tmp_path, monkeypatch):
    """Cut off in the middle, killed, begun again in the same folder: only the rest is read; at the end no part is left."""
    monkeypatch.setattr(download, "PAUSES_SECONDS", ())
    store = Flaky(f"file://{tmp_path}/store")
    path = publish(store, 7, num_values=1000)
    head, root = WeightsHead(weights_version=7, step=0, path=path, epoch=0), tmp_path / "work"
    store.reads_left = 9
    with pytest.raises(Unavailable):
        LocalVersions(store, RUN, root).fetch(head)

    restarted = LocalVersions(store, RUN, root)
    restarted.clear()
    assert [each.name for each in root.iterdir()] == [PARTS]
    store.reads_left, store.begins = 1 << 30, []
    fetched = restarted.fetch(head)

    assert fetched.weights_file.read_bytes() == save({"w": torch.full((1000,), 7.0)})
    assert 0 < len(store.begins) < NUM_RANGES - 5
    assert [each.name for each in root.iterdir()] == ["00000007"]


def test_a_disk_without_room_for_a_folder_is_to_blame(tmp_path, monkeypatch):
    """A worker that waits for its first weights goes on waiting."""

    mkdir = Path.mkdir

    def full(folder: Path, *mode: int, **how: bool) -> None:
        if folder.name.startswith("fetching-"):
            raise OSError(errno.ENOSPC, "No space left on device")
        mkdir(folder, *mode, **how)

    store = Store(f"file://{tmp_path}/store")
    head = WeightsHead(weights_version=0, step=0, path=publish(store, 0), epoch=0)
    monkeypatch.setattr(Path, "mkdir", full)

    with pytest.raises(download.DiskTrouble, match="No space left on device; nothing was fetched"):
        LocalVersions(store, RUN, tmp_path / "work").fetch(head)


@pytest.mark.usefixtures("another_disk")
def test_a_fetch_that_was_given_up_ends_and_no_second_one_waits_beside_it(tmp_path, monkeypatch):
    """A store that hangs holds one thread, not one for each attempt; what comes late is not put in place."""
    store = Flaky(f"file://{tmp_path}/store")
    versions = LocalVersions(store, RUN, tmp_path / "work")
    head = WeightsHead(weights_version=0, step=0, path=publish(store, 0), epoch=0)
    with hanging(store, monkeypatch) as (reached, answer):
        failures: list[Exception] = []
        thread = threading.Thread(target=lambda: failures.append(failure_of(lambda: versions.fetch(head))))
        thread.start()
        assert reached.wait(10)
        versions.give_up()
        with pytest.raises(Unavailable, match="an earlier fetch was given up"):
            versions.fetch(head)
        answer.set()
        thread.join(10)
    assert not thread.is_alive() and "given up" in str(failures[0])
    assert not (tmp_path / "work" / "00000000").exists()

    assert versions.fetch(head).weights_version == 0


NUM_RANGES = 42
"""Of 100 bytes, of 1000 float32 values."""


def publish(store: Store, version: int, *, num_values: int = 2) -> str:
    """One tensor, full of the version's number."""
    path = weights_path(RUN, version)
    files = {WEIGHTS_FILE: save({"w": torch.full((num_values,), float(version))})}
    publish_folder(store, path, files, {}, range_bytes=100)
    return path


class Flaky(Store):
    """One that goes away after some reads of ranges."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.begins: list[int] = []
        self.reads_left = 1 << 30

    def read_range(self, path: str, start: int, end: int) -> bytes:
        self.begins.append(start)
        self.reads_left -= 1
        if self.reads_left < 0:
            raise Unavailable("the store is away")
        return super().read_range(path, start, end)


@contextmanager
def hanging(store: Store, monkeypatch):
    """Reads of ranges hang; (somebody is there, let them go on)."""
    reached, answer, read = threading.Event(), threading.Event(), store.read_range

    def hangs(path: str, start: int, end: int) -> bytes:
        reached.set()
        answer.wait(10)
        return read(path, start, end)

    with monkeypatch.context() as patched:
        patched.setattr(store, "read_range", hangs)
        yield reached, answer


def failure_of(act: Callable[[], object]) -> Exception:
    try:
        act()
    except Exception as wrong:
        return wrong
    raise AssertionError("it did not fail")
