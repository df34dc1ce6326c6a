"""Full and delta versions in a store: the cheapest way to each, and what happens when a part of it is missing or damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from structlog.testing import capture_logs  # noqa: E402

from seamlessflow.errors import BadInput, Unavailable  # noqa: E402
from seamlessflow.store.large_payloads import Store  # noqa: E402
from seamlessflow.weights import MANIFEST, WEIGHTS_FILE, fetch_folder, publish_folder, weights_path  # noqa: E402
from seamlessflow.weights.download import DiskTrouble  # noqa: E402
from seamlessflow.weights.fetch import Held, Obtained, fetch_version  # noqa: E402
from seamlessflow.weights.fetch_plan import Route, routes  # noqa: E402
from seamlessflow.weights.manifest import DELTA_FILE, StoredFile, VersionManifest, read_manifest  # noqa: E402
from seamlessflow.weights.safetensors_file import map_tensors  # noqa: E402
from tests.store.small_disk import files_of_at_most  # noqa: E402
from tests.store.weights_builders import Tensors, safetensors, same, stepped, tensor  # noqa: E402
from tests.store.weights_line import FULL_EVERY, LINE, NEWEST, RUN, publish  # noqa: E402


@pytest.fixture
def filled(store: Store) -> Store:
    """A store with versions 0..7."""
    for version, tensors in enumerate(LINE):
        publish(store, version, tensors, LINE[version - 1] if version else None, is_full=version % FULL_EVERY == 0)
    return store


@pytest.fixture
def fetch(filled: Store, tmp_path) -> Callable[..., Obtained]:
    """Bring a version into ``tmp_path / "here"``, from one that is held or from nothing."""

    def fetch_it(version: int, held: int | None = None, **more: bool) -> Obtained:
        before = None
        if held is not None:
            before = Held(held, tmp_path / "held")
            before.file.write_bytes(safetensors(LINE[held]))
        return fetch_version(filled, weights_path(RUN, version), version, tmp_path / "here", held=before, **more)

    return fetch_it


@pytest.fixture
def here(tmp_path) -> Callable[[], Tensors]:
    return lambda: map_tensors(tmp_path / "here" / WEIGHTS_FILE)


def damage(store: Store, version: int, name: str) -> None:
    path = f"{weights_path(RUN, version)}/{name}"
    content = bytearray(store.read(path))
    content[-1] ^= 1
    store.write(path, bytes(content))


@pytest.mark.parametrize(
    ("held", "version"),
    [(held, version) for version in range(NEWEST + 1) for held in (None, *range(version))],
)
def test_every_version_is_made_of_every_earlier_one(held, version, tmp_path):
    """And of nothing, bit for bit, whatever lies between."""
    store = Store(f"file://{tmp_path}/store")
    for number, tensors in enumerate(LINE):
        publish(store, number, tensors, LINE[number - 1] if number else None, is_full=number % FULL_EVERY == 0)
    before = None if held is None else Held(held, tmp_path / "held")
    if before is not None:
        before.file.write_bytes(safetensors(LINE[held]))

    assert fetch_version(store, weights_path(RUN, version), version, tmp_path / "here", held=before).weights_version == version
    assert same(map_tensors(tmp_path / "here" / WEIGHTS_FILE), LINE[version])


def test_who_follows_takes_the_delta_even_of_a_full_version(fetch, here):
    """A full version costs the followers nothing."""
    assert fetch(6, held=5).route == Route(5, True, (6,), fetch(6, held=5).route.num_bytes)
    assert same(here(), LINE[6])


def test_who_comes_late_takes_the_nearest_full_version_and_the_deltas_since(fetch, here):
    """As few bytes as can be."""
    obtained = fetch(5)

    assert (obtained.route.start, obtained.route.is_held, obtained.route.deltas) == (3, False, (4, 5))
    assert same(here(), LINE[5])


def test_what_is_held_stays_as_it_is(fetch, tmp_path):
    """An engine may be reading it."""
    fetch(7, held=4)

    assert same(map_tensors(tmp_path / "held"), LINE[4])


def test_a_damaged_delta_costs_a_follower_the_way_over_the_full_version(filled, fetch, here):
    """Said with the reason; the version is the same."""
    damage(filled, 5, DELTA_FILE)
    with capture_logs() as logs:
        obtained = fetch(7, held=4)

    assert (obtained.weights_version, obtained.route.start, obtained.route.is_held) == (7, 6, False)
    assert same(here(), LINE[7])
    (failed,) = [line for line in logs if line["event"] == "weights.route_failed"]
    assert "do not have the manifest's digest" in failed["reason"] and failed["is_held"]


def test_a_missing_manifest_in_between_costs_the_same(filled, fetch, here):
    """A version whose writer died, or that was collected."""
    filled.remove(f"{weights_path(RUN, 5)}/{MANIFEST}")

    assert fetch(7, held=4).route.start == 6
    assert same(here(), LINE[7])


def test_what_is_held_and_is_not_what_it_seems_is_found_out(filled, tmp_path):
    """A disk may lie: the digests of the result do not fit, and the full version is fetched."""
    lying = Held(6, tmp_path / "held")
    lying.file.write_bytes(safetensors(LINE[5]))
    with capture_logs() as logs:
        obtained = fetch_version(filled, weights_path(RUN, 7), 7, tmp_path / "here", held=lying)

    assert (obtained.route.start, obtained.route.is_held) == (6, False)
    assert same(map_tensors(tmp_path / "here" / WEIGHTS_FILE), LINE[7])
    assert any("tensors are not what was published" in line.get("reason", "") for line in logs)


def test_a_damaged_full_version_costs_a_newcomer_the_one_before(filled, fetch, here):
    """The delta of a full version leads on from there."""
    damage(filled, 6, WEIGHTS_FILE)
    obtained = fetch(7)

    assert (obtained.weights_version, obtained.route.start, obtained.route.deltas) == (7, 3, (4, 5, 6, 7))
    assert same(here(), LINE[7])


def test_a_newcomer_takes_an_older_version_when_the_newest_cannot_be_had(filled, fetch, here):
    """It can sample with that; the next full version brings it up to date."""
    damage(filled, 7, DELTA_FILE)
    with capture_logs() as logs:
        assert fetch(7, older_will_do=True).weights_version == 6
    assert same(here(), LINE[6])
    (older,) = [line for line in logs if line["event"] == "weights.older_taken"]
    assert (older["wanted"], older["taken"]) == (7, 6)


@pytest.mark.parametrize("held", [None, 5])
def test_where_no_older_version_will_do_there_is_none(filled, fetch, held, tmp_path):
    """A follower goes on with what it has, and who asked for one version gets no other; nothing half made stays."""
    damage(filled, 7, DELTA_FILE)

    with pytest.raises(Unavailable, match="nothing was loaded"):
        fetch(7, held=held)
    assert not any((tmp_path / "here").iterdir())


def test_a_version_that_is_not_there_is_not_found(fetch):
    """The head moved on and it was collected: no older one is taken for it."""
    with pytest.raises(FileNotFoundError):
        fetch(NEWEST + 1)


@pytest.mark.parametrize("held", [None, 7])
def test_values_that_are_no_numbers_are_refused(filled, tmp_path, held):
    """In full and as a delta: a follower keeps what it has, a newcomer takes the version before."""
    broken = stepped(LINE[7], share=0.0, farthest=1, seed=0)
    broken["body"].words[17] = 0x7FC0
    publish(filled, 8, broken, LINE[7], is_full=True)
    before = Held(7, tmp_path / "held")
    before.file.write_bytes(safetensors(LINE[7]))

    if held is None:
        taken = fetch_version(filled, weights_path(RUN, 8), 8, tmp_path / "here", older_will_do=True)
        assert taken.weights_version == 7
    else:
        with pytest.raises(BadInput, match="weights version 8: tensor body has values that are NaN;"):
            fetch_version(filled, weights_path(RUN, 8), 8, tmp_path / "here", held=before)


def test_a_delta_of_another_model_is_refused(filled, tmp_path):
    """Saying which tensor does not fit; a full version would be taken, here is none."""
    other = {"body": tensor("BF16", [1, 2])}
    publish(filled, 8, other, other, is_full=False)
    with capture_logs() as logs, pytest.raises(BadInput, match=r"tensors ids, norm of its base are missing"):
        before = Held(7, tmp_path / "held")
        before.file.write_bytes(safetensors(LINE[7]))
        fetch_version(filled, weights_path(RUN, 8), 8, tmp_path / "here", held=before)
    assert logs


@pytest.mark.parametrize(
    "document",
    [
        b"half",
        b"[]",
        b"{}",
        b"[" * 100_000,
        {"files": [1]},
        {"files": {}, "base": 9},
        {"files": {}, "weights_version": 3},
        {"files": {"a": {}}},
    ],
    ids=lambda document: str(document)[:40],
)
def test_a_manifest_that_makes_no_sense_is_unavailable(store, document):
    """Not JSON, or deeper than anybody can read; no files, a base that is not earlier, another version's number."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    store.write(f"{weights_path(RUN, 5)}/{MANIFEST}", content)

    with pytest.raises(Unavailable, match="is not the manifest of a version"):
        read_manifest(store, weights_path(RUN, 5), 5)
    if isinstance(document, bytes):
        with pytest.raises(Unavailable, match="is not a manifest"):
            fetch_folder(store, weights_path(RUN, 5), Path("nowhere"))


@pytest.mark.parametrize("held", [None, 6])
def test_a_disk_that_is_too_small_is_to_blame_itself(filled, fetch, here, tmp_path, held):
    """In full or as a delta: nothing half made stays, and with room the version is there."""
    (tmp_path / "before").write_bytes(safetensors(LINE[6]))
    before = None if held is None else Held(held, tmp_path / "before")
    with files_of_at_most(len(safetensors(LINE[7])) - 1), pytest.raises(DiskTrouble, match="File too large"):
        fetch_version(filled, weights_path(RUN, 7), 7, tmp_path / "here", held=before)
    assert not any((tmp_path / "here").iterdir())

    fetch(7, held=held)
    assert same(here(), LINE[7])


@pytest.mark.parametrize("content", [b"", b"half", safetensors(LINE[7])[:-1]], ids=["empty", "short", "cut"])
def test_a_full_version_that_is_no_safetensors_is_refused(filled, tmp_path, content):
    """As its writer wrote it: digests cannot tell."""
    publish_folder(filled, weights_path(RUN, 8), {WEIGHTS_FILE: content}, {"weights_version": 8, "base": None})

    with pytest.raises(BadInput, match=r"cannot be read as safetensors|is not safetensors"):
        fetch_version(filled, weights_path(RUN, 8), 8, tmp_path / "here")
    assert not any((tmp_path / "here").iterdir())


def test_a_version_without_digests_of_its_tensors_is_had_in_full_alone(filled, tmp_path):
    """As an earlier release wrote it: what cannot be checked is not built."""
    publish_folder(filled, weights_path(RUN, 8), {WEIGHTS_FILE: safetensors(LINE[5])}, {"weights_version": 8})
    before = Held(7, tmp_path / "held")
    before.file.write_bytes(safetensors(LINE[7]))

    assert fetch_version(filled, weights_path(RUN, 8), 8, tmp_path / "here", held=before).route.is_held is False
    assert same(map_tensors(tmp_path / "here" / WEIGHTS_FILE), LINE[5])


def manifest(version: int, *, full: int | None, delta: int | None) -> VersionManifest:
    """One with files of so many bytes."""
    files = {WEIGHTS_FILE: full, DELTA_FILE: delta}
    listed = {name: StoredFile(num_bytes, "") for name, num_bytes in files.items() if num_bytes is not None}
    return VersionManifest(version, listed, None if delta is None else version - 1, {})


@st.composite
def stores(draw: st.DrawFn) -> dict[int, VersionManifest]:
    """Versions of any sizes; some are full, some lack a delta, some are missing."""
    versions = range(1, draw(st.integers(2, 12)))
    num_bytes = st.none() | st.integers(1, 100)
    kept = [version for version in versions if draw(st.integers(0, 9))]
    return {version: manifest(version, full=draw(num_bytes), delta=draw(num_bytes)) for version in kept}


@given(stores(), st.integers(1, 12), st.none() | st.integers(0, 12), st.integers(0, 2))
def test_a_route_leads_from_something_complete_over_every_delta_in_between(there, wanted, held, num_full):
    """The cheapest first; each names the bytes it fetches."""
    found = routes(wanted, held, there.get, num_full=num_full)

    assert [route.num_bytes for route in found] == sorted(route.num_bytes for route in found)
    for route in found:
        assert route.deltas == tuple(range(route.start + 1, wanted + 1))
        assert route.start == held if route.is_held else there[route.start].full is not None
        fetched = [there[version].delta.num_bytes for version in route.deltas]
        assert route.num_bytes == sum(fetched) + (0 if route.is_held else there[route.start].full.num_bytes)


@given(stores(), st.integers(1, 12), st.none() | st.integers(0, 12))
def test_no_route_means_that_none_is_complete(there, wanted, held):
    """Neither from what is held nor from a full version do deltas lead there."""
    if routes(wanted, held, there.get):
        return
    version = wanted
    while version in there and there[version].delta is not None:
        assert there[version].full is None and version != held
        version -= 1
    assert version != held and (version not in there or there[version].full is None)


def count_reads(store: Store, monkeypatch) -> list[str]:
    """What is read from now on, below the folder of versions; whole or in ranges."""
    reads, read, read_range = [], store.read, store.read_range

    def counted(path: str) -> bytes:
        reads.append(path.removeprefix(f"{RUN}/weights/"))
        return read(path)

    def counted_range(path: str, start: int, end: int) -> bytes:
        reads.append(path.removeprefix(f"{RUN}/weights/"))
        return read_range(path, start, end)

    monkeypatch.setattr(store, "read", counted)
    monkeypatch.setattr(store, "read_range", counted_range)
    return reads


def test_one_bad_delta_is_read_once_more_and_no_full_file_for_it(filled, fetch, here, monkeypatch):
    """Routes over it are not tried, the small files come first: a newcomer reads one full file, whatever was damaged."""
    monkeypatch.setattr("seamlessflow.weights.download.PAUSES_SECONDS", (0.0,) * 4)
    damage(filled, 4, DELTA_FILE)
    reads = count_reads(filled, monkeypatch)

    assert fetch(5, older_will_do=True).weights_version == 3
    assert same(here(), LINE[3])
    assert [path for path in sorted(set(reads)) if reads.count(path) > 1] == [f"{4:08d}/{DELTA_FILE}"]
    assert reads.count(f"{4:08d}/{DELTA_FILE}") == 2, "it may have been the way here that damaged it"
    assert [path for path in reads if path.endswith(WEIGHTS_FILE)] == [f"{3:08d}/{WEIGHTS_FILE}"]


@pytest.mark.parametrize("num_reads", range(1, 8))
def test_a_fetch_that_is_to_stop_asks_the_store_for_nothing_more(filled, tmp_path, monkeypatch, num_reads):
    """Wherever it is, on the way to an older version, too: with a store that hangs each call would take its time."""
    damage(filled, 7, DELTA_FILE)
    reads = count_reads(filled, monkeypatch)
    with pytest.raises(Unavailable):
        fetch_version(
            filled,
            weights_path(RUN, 7),
            7,
            tmp_path / "here",
            older_will_do=True,
            should_stop=lambda: len(reads) >= num_reads,
        )
    assert len(reads) == num_reads


def test_a_newcomer_takes_an_older_version_when_the_manifest_of_the_newest_is_damaged(filled, fetch, here):
    """The one before it is found in the store; of a number with two attempts nobody knows which one was published."""
    filled.write(f"{weights_path(RUN, 7)}/{MANIFEST}", b"")
    assert fetch(7, older_will_do=True).weights_version == 6
    assert same(here(), LINE[6])

    filled.write(f"{weights_path(RUN, 6, 'other')}/{MANIFEST}", filled.read(f"{weights_path(RUN, 6)}/{MANIFEST}"))
    assert fetch(7, older_will_do=True).weights_version == 5
    with pytest.raises(Unavailable):
        fetch(7)


def test_a_newcomer_takes_an_older_version_when_the_manifest_of_the_newest_is_gone(filled, fetch, here):
    """It would wait for ever otherwise: nothing is published before it samples. Who asked for one version gets no other."""
    filled.remove(f"{weights_path(RUN, 7)}/{MANIFEST}")
    assert fetch(7, older_will_do=True).weights_version == 6
    assert same(here(), LINE[6])

    with pytest.raises(FileNotFoundError):
        fetch(7)


def test_a_version_that_was_collected_is_replaced_by_no_older_one(filled, fetch):
    """Those were removed before it: a newcomer reads the head again."""
    for version in range(6):
        filled.remove(f"{weights_path(RUN, version)}/{MANIFEST}")

    with pytest.raises(FileNotFoundError):
        fetch(5, older_will_do=True)


def test_a_full_version_that_is_held_is_not_asked_about(filled, fetch, here, monkeypatch):
    """Its follower needs what changed since, and that alone."""
    reads = count_reads(filled, monkeypatch)

    assert fetch(7, held=6).route.is_held
    assert reads == [f"{7:08d}/{MANIFEST}", f"{7:08d}/{DELTA_FILE}"]
    assert same(here(), LINE[7])
