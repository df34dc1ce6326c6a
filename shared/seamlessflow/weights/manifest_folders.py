"""Folders in the object store: files first, manifest last; a folder without a manifest does not exist.

``{store}/{run}/model/``                          the model's config and tokenizer, written once by the trainer
``{store}/{run}/weights/{version:08d}-{attempt}`` ``model.safetensors``, ``delta.safetensors`` or both, then ``manifest.json``
                                                  with digests of each file and its ranges (stored.py)

An attempt belongs to one writer: a late trainer overwrites nothing that another one published. The first WeightsPublished
of the number and the head determine which attempt is the version (a trainer that finds another's there stops). Earlier
releases had one folder for each number, without attempt.

The newest complete version is the head in the WEIGHTS bucket, moved by compare-and-set only.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from seamlessflow.errors import WrongBytes
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.download import check_in_store, download
from seamlessflow.weights.stored_file import RANGE_BYTES, FileDigests, StoredFile, plain_name, stored_file

MANIFEST = "manifest.json"
WEIGHTS_FILE = "model.safetensors"


def weights_path(run: str, weights_version: int, attempt: str = "") -> str:
    """Folder of a version below the store, or of one attempt to write it. Only its writer may make up the path: readers have
    it from the head, the journal, or the manifest of the version that builds on it."""
    return numbered_path(f"{run}/weights", weights_version) + (f"-{attempt}" if attempt else "")


def numbered_path(parent: str, weights_version: int) -> str:
    """Folder of a version in the folder of all, of its number alone: where earlier releases put it."""
    return f"{parent}/{weights_version:08d}"


def folders_of_versions(store: Store, parent: str) -> dict[int, list[str]]:
    """Paths of what lies in the folder of all versions, by number, lowest first; complete or not. Raises Unavailable."""
    found: dict[int, list[str]] = {}
    for name in store.folders(parent):
        number = name.split("-", 1)[0]
        if number.isdecimal():
            found.setdefault(int(number), []).append(f"{parent}/{name}")
    return dict(sorted(found.items()))


def model_path(run: str) -> str:
    """Folder of the model's config and tokenizer below the store."""
    return f"{run}/model"


def publish_folder(
    store: Store,
    path: str,
    files: Mapping[str, bytes | Iterable[bytes | memoryview]],
    facts: Mapping[str, object],
    *,
    read_back: Collection[str] = (),
    range_bytes: int = RANGE_BYTES,
) -> int:
    """Write files, then the manifest that makes them exist; returns bytes written. Raises Unavailable.

    A file is bytes, or pieces of bytes that are hashed and written as they come: nothing is held whole in memory.
    Each file's manifest entry has digests of its ranges, of ``range_bytes`` each: a reader fetches and checks them one by one.
    facts: JSON values for the manifest. read_back: files that must be read as they were written before there is a manifest.
    """
    listed: dict[str, dict[str, object]] = {}
    total = 0
    for name, content in files.items():
        digests = FileDigests(range_bytes)
        store.write_chunks(f"{path}/{name}", digests.passing([content] if isinstance(content, bytes) else content))
        file = digests.file()
        if name in read_back:
            check_in_store(store, f"{path}/{name}", file)
        listed[name] = file.as_json()
        total += file.num_bytes
    store.write(f"{path}/{MANIFEST}", json.dumps({**facts, "files": listed}, indent=1).encode())
    return total


def remove_folder(store: Store, path: str) -> None:
    """Take a folder away, its manifest first: at no time does it look complete and is not. Raises Unavailable."""
    store.remove(f"{path}/{MANIFEST}")
    store.remove_folder(path)


def fetch_folder(store: Store, path: str, target: Path) -> dict[str, object]:
    """Bring a complete folder here, every file checked against its digests; returns the manifest.

    Raises FileNotFoundError when there is no manifest, Missing when a file is, WrongBytes when one differs, Unavailable.
    """
    manifest, files = folder_manifest(store, path)
    target.mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        download(store, f"{path}/{name}", file, target / name)
    return manifest


def folder_manifest(store: Store, path: str) -> tuple[dict[str, object], dict[str, StoredFile]]:
    """A folder's manifest, and its files by name. Raises FileNotFoundError where there is none, WrongBytes, Unavailable."""
    try:
        manifest: dict[str, object] = json.loads(store.read(f"{path}/{MANIFEST}"))
        files = manifest["files"]
        assert isinstance(files, dict)
        return manifest, {plain_name(name): stored_file(listed) for name, listed in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError) as wrong:
        raise WrongBytes(f"{path}/{MANIFEST} is not a manifest: {wrong!r}; nothing was loaded", f"{path}/{MANIFEST}") from wrong
