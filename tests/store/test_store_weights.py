"""Weights in the store: a version exists when its manifest does, and is loaded whole or not at all."""

from __future__ import annotations

import json

import pytest

from seamlessflow.errors import Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import MANIFEST, fetch_folder, publish_folder, weights_path

FILES = {"model.safetensors": bytes(range(256)) * 4096, "config.json": b"{}"}
PATH = weights_path("demo", 7)


class Watched(Store):
    """Remembers the order of writes, and fails from the given one on."""

    def __init__(self, url: str, fails_at: int = 99) -> None:
        super().__init__(url)
        self.written: list[str] = []
        self.fails_at = fails_at

    def _aside(self, full: str) -> str:
        if len(self.written) == self.fails_at:
            raise OSError("killed here")
        return super()._aside(full)

    def _in_place(self, target: str, full: str) -> None:
        super()._in_place(target, full)
        self.written.append(full.removeprefix(self.root + "/"))


def test_a_version_has_a_folder_of_fixed_width():
    """So that names sort as numbers do."""
    assert PATH == "demo/weights/00000007"


def test_a_published_version_is_fetched_as_it_was(store, tmp_path):
    """Every file byte for byte; the manifest brings the facts."""
    written = publish_folder(store, PATH, FILES, {"step": 6, "parent": 6})

    manifest = fetch_folder(store, PATH, tmp_path / "here")

    assert {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()} == FILES
    assert (manifest["step"], manifest["parent"]) == (6, 6)
    assert written == sum(map(len, FILES.values()))


def test_the_manifest_is_written_last(store_url):
    """Nothing is promised before it is there."""
    store = Watched(store_url)

    publish_folder(store, PATH, FILES, {})

    assert store.written == [f"{PATH}/{name}" for name in (*FILES, MANIFEST)]


@pytest.mark.parametrize("writes", range(len(FILES) + 1))
def test_a_writer_that_dies_anywhere_leaves_no_version(store_url, tmp_path, writes):
    """Whatever was written before: without a manifest there is no version, and publishing again repairs it."""
    with pytest.raises(Unavailable):
        publish_folder(Watched(store_url, fails_at=writes), PATH, FILES, {})

    with pytest.raises(FileNotFoundError):
        fetch_folder(Store(store_url), PATH, tmp_path / "here")
    publish_folder(Store(store_url), PATH, FILES, {})
    fetch_folder(Store(store_url), PATH, tmp_path / "here")


def test_a_file_that_is_not_read_as_it_was_written_gets_no_manifest(store_url):
    """A store that acknowledges and keeps something else: asked to look, the writer notices, and there is no version."""

    class Lying(Store):
        def read_range(self, path: str, start: int, end: int) -> bytes:
            return super().read_range(path, start, end)[:-1]

    with pytest.raises(Unavailable, match="not read as it was written"):
        publish_folder(Lying(store_url), PATH, FILES, {}, read_back=("config.json",))
    assert not Store(store_url).exists(f"{PATH}/{MANIFEST}")


def truncated(store: Store) -> None:
    store.write(f"{PATH}/model.safetensors", FILES["model.safetensors"][:-1])


def flipped(store: Store) -> None:
    store.write(f"{PATH}/model.safetensors", b"\xff" + FILES["model.safetensors"][1:])


def removed(store: Store) -> None:
    store.fs.rm(store.path(PATH, "model.safetensors"))


def manifest_cut(store: Store) -> None:
    store.write(f"{PATH}/{MANIFEST}", store.read(f"{PATH}/{MANIFEST}")[:20])


def manifest_empty(store: Store) -> None:
    store.write(f"{PATH}/{MANIFEST}", json.dumps({"files": ["model.safetensors"]}).encode())


@pytest.mark.parametrize("damage", [truncated, flipped, removed, manifest_cut, manifest_empty])
def test_a_damaged_version_is_refused(store, tmp_path, damage):
    """Unavailable, saying what is wrong; the damaged file does not appear in the target."""
    publish_folder(store, PATH, FILES, {})
    damage(store)

    with pytest.raises(Unavailable, match="nothing was loaded"):
        fetch_folder(store, PATH, tmp_path / "here")
    assert not (tmp_path / "here" / "model.safetensors").exists()


def test_a_file_that_is_not_there_yet_when_read_back_is_trouble_that_passes(tmp_path):
    """A store whose objects appear late: the writer tries again."""

    class Late(Store):
        def read_range(self, path: str, start: int, end: int) -> bytes:
            raise FileNotFoundError(path)

    with pytest.raises(Unavailable, match="is not in the store"):
        publish_folder(Late(f"file://{tmp_path}"), PATH, FILES, {}, read_back=("config.json",))
