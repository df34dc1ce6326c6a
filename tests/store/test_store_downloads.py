"""Files from the store, range by range: whole, bounded in memory, taken up again, and checked by themselves."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.errors import Unavailable, WrongBytes
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, fetch_folder, publish_folder
from seamlessflow.weights.digests import digest_of, hex_of
from seamlessflow.weights.download import PARALLEL_READS, download
from seamlessflow.weights.partial_file import PartFile
from seamlessflow.weights.stored_file import FileDigests, StoredFile, stored_file
from tests.store.small_disk import files_of_at_most

PATH, NAME = "demo/folder", "large.bin"
RANGE_BYTES = 1000
CONTENT = os.urandom(20 * RANGE_BYTES + 17)


def described(content: bytes, range_bytes: int = RANGE_BYTES) -> StoredFile:
    digests = FileDigests(range_bytes)
    digests.add(content)
    return digests.file()


FILE = described(CONTENT)


class Watched(Store):
    """Knows which ranges were read, and how many at a time; from the given one on the store is away."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.begins: list[int] = []
        self.reads_left = 1 << 30
        self.most_at_a_time = self._now = 0
        self._lock = threading.Lock()

    def read_range(self, path: str, start: int, end: int) -> bytes:
        with self._lock:
            self.begins.append(start)
            self.reads_left -= 1
            if self.reads_left < 0:
                raise Unavailable("the store is away")
            self._now += 1
            self.most_at_a_time = max(self.most_at_a_time, self._now)
        try:
            return super().read_range(path, start, end)
        finally:
            with self._lock:
                self._now -= 1


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr("seamlessflow.weights.download.PAUSES_SECONDS", (0.0,))


@pytest.fixture(params=["file", "memory", "s3"])
def watched(request: pytest.FixtureRequest, tmp_path) -> Watched:
    """A store of each kind that has the file."""
    urls = {"file": f"file://{tmp_path}/store", "memory": f"memory://{tmp_path.name}"}
    made = Watched(urls.get(request.param) or request.getfixturevalue("s3_url"))
    made.write(f"{PATH}/{NAME}", CONTENT)
    return made


@pytest.fixture
def local(tmp_path) -> Watched:
    """One in a folder."""
    made = Watched(f"file://{tmp_path}/store")
    made.write(f"{PATH}/{NAME}", CONTENT)
    return made


@given(st.binary(max_size=300), st.integers(1, 80), st.data())
@settings(deadline=None, max_examples=40)
def test_ranges_have_their_digests_however_the_bytes_came(content, range_bytes, data):
    """One chunk or many, empty ones too; they cover every byte once, in order."""
    digests, length = FileDigests(range_bytes), len(content)
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, length), max_size=6))), length]
    pieces = [content[begin:end] for begin, end in pairwise(cuts)]
    assert b"".join(digests.passing(pieces)) == content

    file = digests.file()
    assert (file.num_bytes, file.digest, file.range_bytes) == (length, f"blake3:{hex_of(content)}", range_bytes)
    assert b"".join(content[begin:end] for begin, end in file.spans()) == content
    assert list(file.ranges) == [hex_of(content[begin:end]) for begin, end in file.spans()]


@given(st.binary(max_size=300), st.integers(1, 80))
def test_a_manifest_keeps_what_is_known_of_a_file(content, range_bytes):
    """There and back."""
    file = described(content, range_bytes)

    assert stored_file(json.loads(json.dumps(file.as_json()))) == (file if file.ranges else StoredFile(0, file.digest))


def test_a_file_arrives_whole_in_ranges_that_are_each_read_once(watched, tmp_path):
    """From any filesystem; no more at a time than memory was meant for, and nothing else is left behind."""
    num_bytes = download(watched, f"{PATH}/{NAME}", FILE, tmp_path / "here" / NAME)

    assert (tmp_path / "here" / NAME).read_bytes() == CONTENT
    assert sorted(watched.begins) == list(range(0, len(CONTENT), RANGE_BYTES)) and num_bytes == len(CONTENT)
    assert 1 <= watched.most_at_a_time <= PARALLEL_READS
    assert [each.name for each in (tmp_path / "here").iterdir()] == [NAME]


def test_memory_is_for_the_ranges_on_their_way_alone(tmp_path):
    """Whatever the length of the file; a plain read holds all of it."""
    store, num_bytes, range_bytes = Store(f"file://{tmp_path}/store"), 64 << 20, 1 << 20
    content = bytes(num_bytes)
    store.write("demo/x", content)
    file = described(content, range_bytes)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        download(store, "demo/x", file, tmp_path / "x")
        assert tracemalloc.get_traced_memory()[1] - before < (PARALLEL_READS + 1) * range_bytes
    finally:
        tracemalloc.stop()


def test_what_arrived_before_the_store_went_away_is_not_fetched_again(watched, tmp_path):
    """By the next attempt, which may be another process: only the bytes on the disk tell what is there."""
    watched.reads_left = 8
    with pytest.raises(Unavailable, match="the store is away"):
        download(watched, f"{PATH}/{NAME}", FILE, tmp_path / NAME, parts=tmp_path / "parts")
    assert not (tmp_path / NAME).exists()

    watched.begins, watched.reads_left = [], 1 << 30
    num_bytes = download(watched, f"{PATH}/{NAME}", FILE, tmp_path / NAME, parts=tmp_path / "parts")

    assert len(watched.begins) == len(FILE.ranges) - 8 and num_bytes < len(CONTENT)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert not any((tmp_path / "parts").iterdir())


SLOWLY = """
import json, sys, time
from pathlib import Path
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.download import download
from seamlessflow.weights.stored_file import stored_file

class Slow(Store):
    def read_range(self, path, start, end):
        time.sleep(0.0 if start < 5000 else 60.0)
        return super().read_range(path, start, end)

url, path, document, folder = sys.argv[1:]
download(Slow(url), path, stored_file(json.loads(document)), Path(folder) / "x", parts=Path(folder) / "parts")
"""


def test_a_process_that_is_killed_leaves_what_the_next_one_goes_on_with(local, tmp_path):
    """kill -9 in the middle: the ranges that were written are not read again."""
    arguments = (local.url, f"{PATH}/{NAME}", json.dumps(FILE.as_json()), str(tmp_path))
    part = tmp_path / "parts" / FILE.hex_digest
    with subprocess.Popen([sys.executable, "-c", SLOWLY, *arguments]) as process:
        until = time.monotonic() + 30
        while not (part.exists() and part.read_bytes()[:5000] == CONTENT[:5000]):
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        process.kill()
    download(local, f"{PATH}/{NAME}", FILE, tmp_path / NAME, parts=tmp_path / "parts")

    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert min(local.begins) == 5000


@pytest.mark.parametrize("num_bytes", [0, 1, RANGE_BYTES - 1, RANGE_BYTES, RANGE_BYTES + 1, 2 * RANGE_BYTES])
def test_files_of_any_length_arrive(local, tmp_path, num_bytes):
    """Empty ones, and those that end where a range ends."""
    local.write("demo/x", CONTENT[:num_bytes])
    download(local, "demo/x", described(CONTENT[:num_bytes]), tmp_path / "x", parts=tmp_path / "parts")

    assert (tmp_path / "x").read_bytes() == CONTENT[:num_bytes]


def test_a_part_whose_bytes_are_not_what_they_were_is_fetched_again_there_alone(local, tmp_path):
    """A disk may lose what it said it had: a power cut, and pages that were never written."""
    part = tmp_path / "parts" / FILE.hex_digest
    part.parent.mkdir()
    part.write_bytes(CONTENT[:5000] + bytes(1000) + CONTENT[6000:])
    download(local, f"{PATH}/{NAME}", FILE, tmp_path / NAME, parts=tmp_path / "parts")

    assert (tmp_path / NAME).read_bytes() == CONTENT and local.begins == [5000]


@pytest.mark.parametrize("left", [b"", b"short", CONTENT + b"x"], ids=["empty", "short", "long"])
def test_a_part_of_another_length_is_begun_anew(local, tmp_path, left):
    """It can be no attempt at this file."""
    part = tmp_path / "parts" / FILE.hex_digest
    part.parent.mkdir()
    part.write_bytes(left)
    download(local, f"{PATH}/{NAME}", FILE, tmp_path / NAME, parts=tmp_path / "parts")

    assert (tmp_path / NAME).read_bytes() == CONTENT and len(local.begins) == len(FILE.ranges)


def test_parts_of_files_that_nobody_asks_for_any_more_do_not_pile_up(local, tmp_path):
    """Two stay: no route leads over more full versions."""
    for number in range(4):
        content = bytes([number]) + CONTENT
        local.write("demo/x", content)
        local.reads_left = 4
        with pytest.raises(Unavailable):
            download(local, "demo/x", described(content), tmp_path / NAME, parts=tmp_path / "parts")

    assert len(list((tmp_path / "parts").iterdir())) == 2


def test_bytes_that_are_wrong_once_are_read_again_and_wrong_twice_are_damage(local, tmp_path, monkeypatch):
    """A bit that flipped on the way costs one range; of a file that is damaged nothing stays here."""
    whole, reads = local.read_range, []

    def flipped_at_first(path: str, start: int, end: int) -> bytes:
        content = whole(path, start, end)
        reads.append(start)
        return b"!" + content[1:] if start == 3000 and reads.count(3000) <= wrong_times else content

    monkeypatch.setattr(local, "read_range", flipped_at_first)
    monkeypatch.setattr("seamlessflow.weights.download.PAUSES_SECONDS", (0.0,) * 5)
    wrong_times = 1
    download(local, f"{PATH}/{NAME}", FILE, tmp_path / NAME, parts=tmp_path / "parts")
    assert (tmp_path / NAME).read_bytes() == CONTENT and reads.count(3000) == 2

    wrong_times = 99
    with pytest.raises(WrongBytes, match=r"bytes 3000 to 4000 .* do not have the manifest's digest"):
        download(local, f"{PATH}/{NAME}", FILE, tmp_path / "again", parts=tmp_path / "parts")
    assert reads.count(3000) == 4 and not (tmp_path / "again").exists() and not any((tmp_path / "parts").iterdir())


def test_a_download_that_is_told_to_stop_stops_and_keeps_what_it_has(local, tmp_path):
    """Before the next range."""
    stop = threading.Event()

    def stops_soon() -> bool:
        if len(local.begins) >= 5:
            stop.set()
        return stop.is_set()

    with pytest.raises(Unavailable, match="was given up"):
        download(local, f"{PATH}/{NAME}", FILE, tmp_path / NAME, parts=tmp_path / "parts", should_stop=stops_soon)
    assert len(local.begins) <= 5 + PARALLEL_READS

    local.begins = []
    download(local, f"{PATH}/{NAME}", FILE, tmp_path / NAME, parts=tmp_path / "parts")
    assert len(local.begins) < len(FILE.ranges)


def test_two_fetches_of_one_file_do_not_write_into_each_other(tmp_path):
    """The first was given up and hangs in its reads; it comes back when the second one has nearly all."""
    slow, quick = (Watched(f"file://{tmp_path}/store") for _ in range(2))
    slow.write(f"{PATH}/{NAME}", CONTENT)
    given_up, hangs, answers, said = threading.Event(), threading.Event(), threading.Event(), []

    def late(path: str, start: int, end: int) -> bytes:
        hangs.set()
        assert answers.wait(10)
        return Watched.read_range(slow, path, start, end)

    def last(path: str, start: int, end: int) -> bytes:
        if start == 20 * RANGE_BYTES:
            while len(quick.begins) < len(FILE.ranges) - 1:
                time.sleep(0.01)
            answers.set()
            first.join(10)
        return Watched.read_range(quick, path, start, end)

    def go() -> None:
        try:
            download(slow, f"{PATH}/{NAME}", FILE, tmp_path / "a", parts=tmp_path / "parts", should_stop=given_up.is_set)
        except Unavailable as wrong:
            said.append(str(wrong))

    slow.read_range, quick.read_range = late, last
    first = threading.Thread(target=go)
    first.start()
    assert hangs.wait(10)
    given_up.set()
    download(quick, f"{PATH}/{NAME}", FILE, tmp_path / "b", parts=tmp_path / "parts")

    assert (tmp_path / "b").read_bytes() == CONTENT
    assert not first.is_alive() and said and not (tmp_path / "a").exists()


def test_a_part_that_somebody_writes_is_left_to_him(local, tmp_path):
    """It is said, and as it was when he is done."""
    part = PartFile(tmp_path / "parts" / FILE.hex_digest, FILE)
    part.write(0, CONTENT[:RANGE_BYTES])
    with pytest.raises(Unavailable, match="is being written by another fetch"):
        download(local, f"{PATH}/{NAME}", FILE, tmp_path / NAME, parts=tmp_path / "parts")
    part.close()

    assert download(local, f"{PATH}/{NAME}", FILE, tmp_path / NAME, parts=tmp_path / "parts") == len(CONTENT) - RANGE_BYTES


def test_a_disk_that_gets_full_is_said_and_given_back_what_was_taken(local, tmp_path, monkeypatch):
    """At the write itself: a quota, or others who write at the same time."""
    written, write = [], os.pwrite

    def full_after_three(descriptor: int, content: memoryview, at: int) -> int:
        written.append(at)
        if len(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content, at)

    monkeypatch.setattr(os, "pwrite", full_after_three)

    with pytest.raises(Unavailable, match=r"cannot be written .*No space left.*; it has 20017 bytes, \d+ bytes are free"):
        download(local, f"{PATH}/{NAME}", FILE, tmp_path / NAME, parts=tmp_path / "parts")
    assert not (tmp_path / NAME).exists() and not any((tmp_path / "parts").iterdir())


def test_a_disk_that_is_too_small_is_found_before_the_file_is_fetched(local, tmp_path):
    """Room for all of it is taken with the first bytes: no more is read than was on its way then."""
    with files_of_at_most(len(CONTENT) - 1), pytest.raises(Unavailable, match="cannot be written to"):
        download(local, f"{PATH}/{NAME}", FILE, tmp_path / NAME)

    assert len(local.begins) <= PARALLEL_READS and not list(tmp_path.glob(f"{NAME}*"))
    download(local, f"{PATH}/{NAME}", FILE, tmp_path / NAME)


def test_a_filesystem_that_cannot_take_room_at_once_has_the_file_all_the_same(local, tmp_path, monkeypatch):
    """Some network mounts."""

    def refuses(*arguments: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuses)
    download(local, f"{PATH}/{NAME}", FILE, tmp_path / NAME)

    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_ranges_with_nothing_written_are_seen_without_reading(tmp_path):
    """A part file that has holes; bytes beyond the last written one, too."""
    part = PartFile(tmp_path / "part", FILE)
    part.write(4000, CONTENT[4000:5000])
    part.close()

    again = PartFile(tmp_path / "part", FILE)
    assert again.missing() == [number for number in range(len(FILE.ranges)) if number != 4]
    again.close()


def test_a_file_without_digests_of_its_ranges_is_checked_as_a_whole(watched, tmp_path):
    """As earlier releases wrote it; in ranges all the same, and nothing is kept that cannot be checked."""
    old = StoredFile(FILE.num_bytes, digest_of(CONTENT, "sha256"), RANGE_BYTES)
    download(watched, f"{PATH}/{NAME}", old, tmp_path / NAME, parts=tmp_path / "parts")
    assert (tmp_path / NAME).read_bytes() == CONTENT and len(watched.begins) == len(FILE.ranges)

    watched.write(f"{PATH}/{NAME}", CONTENT[:-1] + b"!")
    with pytest.raises(WrongBytes, match="do not have the manifest's digest"):
        download(watched, f"{PATH}/{NAME}", old, tmp_path / "other", parts=tmp_path / "parts")
    assert not list(tmp_path.glob("other*")) and not list(tmp_path.glob("parts/*"))

    watched.reads_left = 5
    with pytest.raises(Unavailable, match="the store is away"):
        download(watched, f"{PATH}/{NAME}", old, tmp_path / "other", parts=tmp_path / "parts")
    assert not list(tmp_path.glob("other*")) and not list(tmp_path.glob("parts/*"))


def test_a_folder_of_an_earlier_release_is_fetched_too(store, tmp_path):
    """Which hashed by SHA-256, and knew no ranges."""
    publish_folder(store, PATH, {NAME: CONTENT}, {}, range_bytes=RANGE_BYTES)
    manifest = json.loads(store.read(f"{PATH}/{MANIFEST}"))
    listed = manifest["files"][NAME]
    assert (listed.pop("blake3"), listed["bytes"]) == (FILE.hex_digest, FILE.num_bytes)
    assert (listed.pop("range_bytes"), tuple(listed.pop("ranges"))) == (RANGE_BYTES, FILE.ranges)

    listed["sha256"] = hex_of(CONTENT, "sha256")
    store.write(f"{PATH}/{MANIFEST}", json.dumps(manifest).encode())
    fetch_folder(store, PATH, tmp_path / "here")
    assert (tmp_path / "here" / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "a/b", "..", ".", "", ".hidden", "a\\b", "a\0b", "a" * 300])
def test_a_manifest_that_names_a_file_outside_of_its_folder_is_refused(local, tmp_path, name):
    """Whoever can write to the store cannot write elsewhere on a reader's disk; nor make it fail at a name."""
    publish_folder(local, PATH, {NAME: CONTENT}, {})
    manifest = json.loads(local.read(f"{PATH}/{MANIFEST}"))
    manifest["files"][name] = manifest["files"][NAME]
    local.write(f"{PATH}/{MANIFEST}", json.dumps(manifest).encode())

    with pytest.raises(Unavailable, match="is not a manifest"):
        fetch_folder(local, PATH, tmp_path / "deep" / "here")
    assert not (tmp_path / "deep" / "outside").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes": -1},
        {"bytes": "20017"},
        {"blake3": "../x"},
        {"blake3": None},
        {"ranges": ["a"]},
        {"ranges": "abc"},
        {"ranges": [1] * 21},
        {"range_bytes": 0},
        {"range_bytes": 1 << 40},
        {"bytes": 10**18, "ranges": []},
        {"bytes": 10**9, "range_bytes": 1, "ranges": []},
    ],
    ids=str,
)
def test_a_description_that_makes_no_sense_is_refused(wrong):
    """A range of a terabyte would be held in memory, and so would a list of all ranges of an exabyte."""
    with pytest.raises(ValueError, match=r"ranges|a file of|the digest"):
        stored_file({**FILE.as_json(), **wrong})
