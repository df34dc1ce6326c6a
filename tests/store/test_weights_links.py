"""Where the store is a folder on the worker's disk, a full version is the store's own file: checked, and never written into."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seamlessflow.blobs import Store
from seamlessflow.errors import Unavailable
from seamlessflow.weights import WEIGHTS_FILE, publish_folder
from seamlessflow.weights.downloads import Damaged, download
from seamlessflow.weights.fetching import fetch_version
from seamlessflow.weights.stored import FileDigests, StoredFile
from seamlessflow.weights.tensorfile import map_tensors
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
    def refuse(*names: object) -> None:
        raise wrong

    monkeypatch.setattr(os, "link", refuse)
    download(local, f"{PATH}/{NAME}", described(CONTENT), tmp_path / NAME, may_link=True)
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert not (tmp_path / NAME).samefile(stored(local, f"{PATH}/{NAME}"))


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"!", CONTENT[:-1], b""], ids=["other", "short", "empty"])
def test_a_damaged_one_is_no_better_for_being_linked(local: Store, tmp_path: Path, content: bytes):
    local.write(f"{PATH}/{NAME}", content)
    with pytest.raises(Damaged, match="do not have the manifest's digest"):
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
