"""Where the store is a folder on the worker's disk, a full version is the store's own file: checked, and never written into."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import pytest

from seamlessflow.errors import Unavailable, WrongBytes
from seamlessflow.store import object_store
from seamlessflow.store.large_payloads import Store
from seamlessflow.store.object_store import make_link
from seamlessflow.store.timeouts import StoreTimeouts
from seamlessflow.weights import WEIGHTS_FILE, publish_folder, weights_path
from seamlessflow.weights import download as downloads
from seamlessflow.weights.download import download
from seamlessflow.weights.fetch import fetch_version
from seamlessflow.weights.safetensors_file import map_tensors
from seamlessflow.weights.stored_file import FileDigests, StoredFile
from tests.store import adapter_builders as lora
from tests.store.weights_builders import same
from tests.store.weights_line import LINE, publish

PATH, NAME = "demo/folder", "large.bin"
CONTENT = os.urandom(20_017)


def described(content: bytes) -> StoredFile:
    digests = FileDigests(1000)
    digests.add(content)
    return digests.file()


@pytest.fixture
def local(tmp_path: Path) -> Store:
    """With one file."""
    store = Store(f"file://{tmp_path}/store")
    publish_folder(store, PATH, {NAME: CONTENT}, {}, range_bytes=1000)
    return store


def stored(store: Store, path: str) -> Path:
    return Path(store.path(path))


def test_a_file_on_the_same_disk_is_linked_and_outlives_the_stores(local: Store, tmp_path: Path):
    target = tmp_path / "here" / NAME
    num_bytes = download(local, f"{PATH}/{NAME}", described(CONTENT), target, parts=tmp_path / "parts", may_link=True)
    assert num_bytes == len(CONTENT)
    assert target.samefile(stored(local, f"{PATH}/{NAME}"))
    assert [each.name for each in target.parent.iterdir()] == [NAME] and not (tmp_path / "parts").exists()

    local.remove_folder(PATH)
    assert target.read_bytes() == CONTENT


def test_again_to_where_it_is_already(local: Store, tmp_path: Path):
    """Renaming one name of a file to another of its names does nothing, and leaves both."""
    for _ in range(2):
        download(local, f"{PATH}/{NAME}", described(CONTENT), tmp_path / NAME, may_link=True)
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == [NAME]


def test_it_is_copied_for_whoever_may_change_it(local: Store, tmp_path: Path):
    download(local, f"{PATH}/{NAME}", described(CONTENT), tmp_path / NAME)
    assert not (tmp_path / NAME).samefile(stored(local, f"{PATH}/{NAME}"))


@pytest.mark.parametrize("wrong", [OSError(18, "another disk"), PermissionError(1, "somebody else's"), NotImplementedError()])
def test_it_is_copied_where_it_cannot_be_linked(local: Store, tmp_path: Path, monkeypatch, wrong: Exception):
    def refuse(*names: object, **how: object) -> None:
        raise wrong

    monkeypatch.setattr(os, "link", refuse)
    download(local, f"{PATH}/{NAME}", described(CONTENT), tmp_path / NAME, may_link=True)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert not (tmp_path / NAME).samefile(stored(local, f"{PATH}/{NAME}"))


@pytest.mark.parametrize("content", [CONTENT, b"four"], ids=["large", "as long as the name it leads to"])
def test_a_symbolic_link_in_the_store_is_copied(local: Store, tmp_path: Path, content: bytes):
    """Linked, it would be a link to somewhere: of a relative one, to nowhere."""
    local.write(f"{PATH}/{NAME}", content)
    file, target = stored(local, f"{PATH}/{NAME}"), tmp_path / "here" / NAME
    file.rename(file.with_name("real"))
    file.symlink_to("real")
    download(local, f"{PATH}/{NAME}", described(content), target, may_link=True)

    assert not target.is_symlink() and target.read_bytes() == content and not target.samefile(file)
    assert [each.name for each in target.parent.iterdir()] == [NAME]


@pytest.mark.parametrize("name", ["lstat", "unlink"])
def test_a_link_that_cannot_be_looked_at_or_removed_is_no_reason_to_fail(local: Store, tmp_path: Path, monkeypatch, name: str):
    """It is copied; the disk is not to blame for what is only a shorter way."""
    method = getattr(Path, name)

    def refuse(path: Path, *arguments: object, **how: object) -> object:
        if path.suffix == ".link":
            raise OSError(5, "Input/output error")
        return method(path, *arguments, **how)

    content = CONTENT + b"!"
    local.write(f"{PATH}/{NAME}", content)
    monkeypatch.setattr(Path, name, refuse)
    download(local, f"{PATH}/{NAME}", described(CONTENT), tmp_path / NAME, may_link=True)
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_without_a_thread_to_link_in_it_is_not_linked(local: Store, tmp_path: Path, monkeypatch):
    """The process may have no more of them: whoever copies needs one, too, and says so."""
    fresh = Store(local.url)
    monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("can't start new thread")))

    assert not fresh.link(f"{PATH}/{NAME}", tmp_path / "link", len(CONTENT))


def test_what_is_checked_is_what_will_be_loaded(local: Store, tmp_path: Path, monkeypatch):
    """The version is collected, or its name given to other bytes, when the file is linked already: it is the one that was."""
    link = local.link

    def linked(*arguments: object) -> bool:
        is_linked = link(*arguments)  # type: ignore[arg-type]
        local.write(f"{PATH}/{NAME}", b"another file")
        local.remove_folder(PATH)
        return is_linked

    monkeypatch.setattr(local, "link", linked)
    download(local, f"{PATH}/{NAME}", described(CONTENT), tmp_path / NAME, may_link=True)
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_a_mount_that_hangs_when_it_is_read_does_not_hang_whoever_links(local: Store, tmp_path: Path, monkeypatch):
    """Reads of a link have the time of any call; nothing is left in the place where it was wanted."""
    store, answer = Store(local.url), threading.Event()

    def hang(*arguments: object) -> None:
        store._limits = StoreTimeouts(
            call_seconds=0.05, bytes_per_second=1e12
        )  # of the reads that follow: it was linked in time
        answer.wait(10)

    store._limits = StoreTimeouts(call_seconds=1.0, bytes_per_second=1e12)
    monkeypatch.setattr(object_store, "read_at", hang)
    monkeypatch.setattr(downloads, "PAUSES_SECONDS", ())

    began = time.monotonic()
    with pytest.raises(Unavailable, match="no answer within"):
        download(store, f"{PATH}/{NAME}", described(CONTENT), tmp_path / "here" / NAME, may_link=True)
    answer.set()
    assert time.monotonic() - began < 5 and not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_link_that_was_given_up_comes_to_nothing(local: Store, tmp_path: Path, monkeypatch, is_removed: bool):
    """Its thread is left behind, and must neither make a removed folder again nor leave a file that nobody knows."""
    store, answer, ended = Store(local.url, StoreTimeouts(call_seconds=0.05)), threading.Event(), threading.Event()

    def late(*arguments: object) -> bool:
        try:
            answer.wait(10)
            return make_link(*arguments)  # type: ignore[arg-type]
        finally:
            ended.set()

    monkeypatch.setattr(object_store, "make_link", late)
    link = tmp_path / "here" / "link"
    assert not store.link(f"{PATH}/{NAME}", link, len(CONTENT))
    if is_removed:
        link.parent.rmdir()
    answer.set()
    assert ended.wait(10)
    assert not link.parent.exists() if is_removed else not list(link.parent.iterdir())


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_nobody_is_to_write_into_what_may_be_linked(tmp_path: Path, umask: int):
    """Neither its owner by mistake; who may read it is for the umask to say. It is replaced and removed as ever."""
    store, before = Store(f"file://{tmp_path}/store"), os.umask(umask)
    try:
        store.write_chunks("demo/x", [b"content"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(stored(store, "demo/x").stat().st_mode) == 0o444 & ~umask

    store.write_chunks("demo/x", [b"other"])
    assert store.read("demo/x") == b"other"
    store.remove_folder("demo")
    assert not store.exists("demo/x")


def test_a_disk_without_modes_is_written_to_all_the_same(tmp_path: Path, monkeypatch):
    """Some network mounts have none."""
    store = Store(f"file://{tmp_path}/store")
    monkeypatch.setattr(object_store, "forbid_writing", lambda file: (_ for _ in ()).throw(PermissionError(1, "not here")))
    store.write_chunks("demo/x", [b"content"])

    assert store.read("demo/x") == b"content"


def test_the_base_of_an_adapter_is_linked_and_stays_as_it_is(tmp_path: Path):
    """It is read, and a copy of it changed; without leave to link, it is copied."""
    store = Store(f"file://{tmp_path}/store")
    publish_folder(store, lora.FACTS.base_path, {WEIGHTS_FILE: lora.BASE_FILE}, {"base": None})
    lora.publish(store, 1, lora.adapter(1))
    for may_link in (True, False):
        bases, target = tmp_path / f"bases {may_link}", tmp_path / f"here {may_link}"
        fetch_version(store, weights_path(lora.RUN, 1), 1, target, bases=bases, may_link=may_link)
        [base] = bases.glob(f"*/{WEIGHTS_FILE}")
        assert base.samefile(stored(store, f"{lora.FACTS.base_path}/{WEIGHTS_FILE}")) is may_link
        assert same(map_tensors(target / WEIGHTS_FILE), lora.expected(1))
        assert same(map_tensors(base), lora.BASE)


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"!", CONTENT[:-1], b""], ids=["other", "short", "empty"])
def test_a_damaged_one_is_no_better_for_being_linked(local: Store, tmp_path: Path, content: bytes):
    local.write(f"{PATH}/{NAME}", content)
    with pytest.raises(WrongBytes, match="do not have the manifest's digest"):
        download(local, f"{PATH}/{NAME}", described(CONTENT), tmp_path / NAME, may_link=True)

    assert not list(tmp_path.glob(f"{NAME}*")) and stored(local, f"{PATH}/{NAME}").read_bytes() == content


def test_one_with_more_behind_its_end_is_copied_up_to_there(local: Store, tmp_path: Path):
    """Bytes that nobody checked would be there for whoever loads it."""
    local.write(f"{PATH}/{NAME}", CONTENT + b"!")
    download(local, f"{PATH}/{NAME}", described(CONTENT), tmp_path / NAME, may_link=True)
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_one_that_is_missing_is_said_to_be(local: Store, tmp_path: Path):
    local.remove(f"{PATH}/{NAME}")
    with pytest.raises(Unavailable, match="not in the store"):
        download(local, f"{PATH}/{NAME}", described(CONTENT), tmp_path / NAME, may_link=True)


def test_changes_are_made_on_a_copy(tmp_path: Path):
    """A version of a full one and the changes since leaves the full one in the store as it was."""
    store = Store(f"file://{tmp_path}/store")
    paths = [
        publish(store, number, LINE[number], LINE[number - 1] if number else None, is_full=not number) for number in (0, 1)
    ]
    for number in (0, 1):
        fetch_version(store, paths[number], number, tmp_path / str(number), may_link=True)

    full = stored(store, f"{paths[0]}/{WEIGHTS_FILE}")
    assert (tmp_path / "0" / WEIGHTS_FILE).samefile(full) and not (tmp_path / "1" / WEIGHTS_FILE).samefile(full)
    assert same(map_tensors(full), LINE[0]) and same(map_tensors(tmp_path / "1" / WEIGHTS_FILE), LINE[1])
