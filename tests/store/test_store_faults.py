"""Weights over a real S3 server behind a proxy that does what networks and servers do: the version, whole, or nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

np = pytest.importorskip("numpy")

from seamlessflow.errors import SeamlessFlowError, Unavailable  # noqa: E402
from seamlessflow.store.large_payloads import Store  # noqa: E402
from seamlessflow.store.timeouts import StoreTimeouts  # noqa: E402
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, fetch_folder, publish_folder, weights_path  # noqa: E402
from seamlessflow.weights.fetch import fetch_version  # noqa: E402
from seamlessflow.weights.manifest import version_facts  # noqa: E402
from seamlessflow.weights.safetensors_file import map_tensors, tensor_digests  # noqa: E402
from seamlessflow.weights.stored_file import RANGE_BYTES as DEFAULT_RANGE_BYTES  # noqa: E402
from tests.store import fault_proxy as faults  # noqa: E402
from tests.store.fault_proxy import FaultProxy  # noqa: E402
from tests.store.weights_builders import Tensors, safetensors, same, stepped, tensor  # noqa: E402

RUN, RANGE_BYTES = "demo", 4096
OLD: Tensors = {"w": tensor("F32", np.random.default_rng(0).integers(0x3E000000, 0x3F000000, 20_000))}
NEW = stepped(OLD, share=0.5, farthest=9, seed=1)
NUM_RANGES = -(-len(safetensors(NEW)) // RANGE_BYTES)


def publish(store: Store, version: int, tensors: Tensors) -> str:
    path = weights_path(RUN, version)
    facts = version_facts(weights_version=version, step=version, dtype="float32", base=None, tensors=tensor_digests(tensors))
    publish_folder(store, path, {WEIGHTS_FILE: safetensors(tensors)}, facts, range_bytes=RANGE_BYTES)
    return path


@pytest.fixture
def fetch(proxied: Store, tmp_path) -> Callable[[], Tensors]:
    """Version 1, published before, is brought here, with a folder for parts; twice the same attempt goes on."""
    path = publish(proxied, 1, NEW)

    def fetch_it() -> Tensors:
        fetch_version(proxied, path, 1, tmp_path / "here", parts=tmp_path / "parts")
        return map_tensors(tmp_path / "here" / WEIGHTS_FILE)

    return fetch_it


HEALED_BY_ITSELF = {
    "slow": (faults.slow(0.01), 4),
    "cut in the middle": (faults.cut, 4),
    "closed without an answer": (faults.close, 4),
    "internal errors": (faults.refuse(500, faults.INTERNAL_ERROR), 4),
    "throttled": (faults.refuse(503, faults.SLOW_DOWN), 4),
    "truncated on the way": (faults.truncate, 1),
    "a bit flipped on the way": (faults.flip, 1),
    "a lying ETag": (faults.lie_about_etag, faults.ALWAYS),
}


@pytest.mark.parametrize("trouble", HEALED_BY_ITSELF)
def test_trouble_that_passes_costs_time_alone(proxy: FaultProxy, fetch, trouble):
    """The version arrives as it was written; ranges that were read well are not read again."""
    fault, times = HEALED_BY_ITSELF[trouble]
    proxy.plan(fault, path=WEIGHTS_FILE, times=times)

    assert same(fetch(), NEW)
    begins = proxy.ranges_read(WEIGHTS_FILE)
    assert len(set(begins)) == NUM_RANGES and len(begins) <= NUM_RANGES + min(times, 4)


LASTING = {
    "hanging": faults.hang,
    "too slow": faults.slow(1.0),
    "cut in the middle": faults.cut,
    "closed without an answer": faults.close,
    "internal errors": faults.refuse(500, faults.INTERNAL_ERROR),
    "throttled": faults.refuse(503, faults.SLOW_DOWN),
    "truncated": faults.truncate,
    "a bit flipped": faults.flip,
    "access denied": faults.refuse(403, "AccessDenied"),
    "gone": faults.refuse(404, "NoSuchKey"),
}


@pytest.mark.parametrize("trouble", LASTING)
def test_trouble_that_lasts_is_said_and_nothing_is_loaded(proxy: FaultProxy, proxied, fetch, tmp_path, trouble, monkeypatch):
    """In a time that has a limit; when it is over the same call gives the version."""
    monkeypatch.setattr("seamlessflow.weights.download.PAUSES_SECONDS", (0.01,))
    proxied._limits = StoreTimeouts(call_seconds=0.5, bytes_per_second=1e12)
    proxy.plan(LASTING[trouble], path=WEIGHTS_FILE, begin=3 * RANGE_BYTES)
    began = time.monotonic()
    with pytest.raises(Unavailable):
        fetch()
    assert time.monotonic() - began < 10
    assert not any((tmp_path / "here").iterdir())

    proxy.heal()
    assert same(fetch(), NEW)


def test_a_store_that_goes_away_in_the_middle_and_comes_back_is_read_on_from_there(proxy: FaultProxy, fetch, tmp_path):
    """By a later attempt: what arrived is not asked for again."""

    def goes_away() -> None:
        proxy.is_away = True

    proxy.plan(faults.Meanwhile(goes_away), path=WEIGHTS_FILE, begin=10 * RANGE_BYTES)
    with pytest.raises(Unavailable):
        fetch()
    (part,) = (tmp_path / "parts").iterdir()

    proxy.heal()
    assert same(fetch(), NEW)
    again = proxy.ranges_read(WEIGHTS_FILE)
    assert 0 < len(again) < NUM_RANGES
    assert not part.exists()


def test_an_object_that_is_replaced_while_it_is_read_is_no_mixture(proxy: FaultProxy, proxied, fetch, tmp_path):
    """Ranges of the other one do not have their digests. When it is replaced with its manifest, the next attempt has it."""

    def replaced() -> None:
        publish(proxied, 1, OLD)

    proxy.plan(faults.Meanwhile(replaced), path=WEIGHTS_FILE, begin=8 * RANGE_BYTES, times=1)
    with pytest.raises(Unavailable, match="do not have the manifest's digest"):
        fetch()
    assert not any((tmp_path / "here").iterdir())

    assert same(fetch(), OLD)


@pytest.mark.parametrize("writes", [1, 2])
def test_a_writer_that_dies_before_its_manifest_wrote_no_version(proxy: FaultProxy, proxied, tmp_path, writes):
    """Killed at the weights or at the manifest: there is nothing, until somebody writes it to its end."""
    path = weights_path(RUN, 2)
    proxy.plan(faults.close, method="PUT", path=WEIGHTS_FILE if writes == 1 else MANIFEST)
    with pytest.raises(Unavailable, match="cannot write"):
        publish(proxied, 2, NEW)
    with pytest.raises(FileNotFoundError):
        fetch_version(proxied, path, 2, tmp_path / "here")

    proxy.heal()
    publish(proxied, 2, NEW)
    fetch_version(proxied, path, 2, tmp_path / "here")


@pytest.mark.parametrize("trouble", ["truncated", "a bit flipped", "internal errors"])
def test_a_manifest_that_arrives_damaged_leads_nowhere(proxy: FaultProxy, fetch, tmp_path, trouble):
    """It is not parsed as far as it goes."""
    proxy.plan(LASTING[trouble], path=MANIFEST)
    with pytest.raises(SeamlessFlowError):
        fetch()
    assert not (tmp_path / "here").exists()

    proxy.heal()
    assert same(fetch(), NEW)


def test_a_server_that_hangs_holds_no_thread(proxy: FaultProxy, proxied, fetch):
    """Calls are cancelled when their time is over, as often as one tries."""
    proxied._limits = StoreTimeouts(call_seconds=0.1, bytes_per_second=1e12)
    proxy.plan(faults.hang)
    before = {thread for thread in threading.enumerate() if thread.name == "store-call"}
    for _ in range(5):
        with pytest.raises(Unavailable, match="no answer within"):
            proxied.read(f"{weights_path(RUN, 1)}/{MANIFEST}")
    assert not {thread for thread in threading.enumerate() if thread.name == "store-call"} - before

    proxied._limits = StoreTimeouts()
    proxy.heal()
    assert same(fetch(), NEW)


def test_a_server_that_answers_a_byte_now_and_then_is_no_better_than_one_that_hangs(proxy: FaultProxy, proxied, fetch):
    """No pause between two bytes is long enough for the client's own timer."""
    proxied._limits = StoreTimeouts(call_seconds=0.3, bytes_per_second=1e12)
    proxy.plan(faults.slow(0.2), path=MANIFEST)

    began = time.monotonic()
    with pytest.raises(Unavailable, match="no answer within"):
        proxied.read(f"{weights_path(RUN, 1)}/{MANIFEST}")
    assert time.monotonic() - began < 5


def test_a_writer_whose_server_hangs_is_told_so(proxy: FaultProxy, proxied):
    """Whole or piece by piece; what may still arrive of it has no manifest."""
    proxied._limits = StoreTimeouts(call_seconds=0.3, bytes_per_second=1e12)
    proxy.plan(faults.hang, method="PUT")
    with pytest.raises(Unavailable, match="no answer within"):
        proxied.write_chunks("demo/x", [b"some", b"thing"])
    with pytest.raises(Unavailable, match="no answer within"):
        proxied.write("demo/y", b"something")


def test_what_s3fs_does_by_itself_is_enough_for_a_throttled_start(proxy: FaultProxy, s3_url, tmp_path):
    """With the settings that services have, and ranges as long as theirs: the first request of each kind is refused, and
    nobody notices."""
    store = Store(s3_url)
    proxy.plan(faults.refuse(503, faults.SLOW_DOWN), method="PUT", times=1)
    proxy.plan(faults.refuse(500, faults.INTERNAL_ERROR), method="GET", times=1)
    content = np.random.default_rng(0).bytes(2 * DEFAULT_RANGE_BYTES + 5)
    publish_folder(store, "demo/folder", {"x": content}, {})
    fetch_folder(store, "demo/folder", tmp_path / "here")

    assert (tmp_path / "here" / "x").read_bytes() == content
    assert {0, DEFAULT_RANGE_BYTES, 2 * DEFAULT_RANGE_BYTES} == set(proxy.ranges_read("demo/folder/x"))
