"""Folders in the object store: files first, manifest last; a folder without a manifest does not exist.

``{store}/{run}/model/``                          the model's config and tokenizer, written once by the trainer
``{store}/{run}/weights/{version:08d}-{attempt}`` ``model.safetensors``, ``delta.safetensors`` or both, then ``manifest.json``
                                                  with a digest for each file (manifests.py)

An attempt is one writer's: who writes late, behind another trainer's back, touches nothing that this one published. Which
attempt is the version, the first WeightsPublished of the number and the head say (publishing.py of the trainer: who finds
another's there stops); earlier releases had one folder for each number, without attempt.

The newest complete version is the head in the WEIGHTS bucket, moved by compare-and-set only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from ..blobs import Store
from ..errors import Unavailable

MANIFEST = "manifest.json"
WEIGHTS_FILE = "model.safetensors"


def weights_path(run: str, weights_version: int, attempt: str = "") -> str:
    """Folder of a version below the store, or of one attempt to write it. Only its writer may make up the path: readers have
    it from the head, the journal, or the manifest of the version that builds on it."""
    return f"{run}/weights/{weights_version:08d}" + (f"-{attempt}" if attempt else "")


def folders_of_versions(store: Store, parent: str) -> dict[int, list[str]]:
    """Paths of what lies in the folder of all versions, by number, lowest first; complete or not. Raises Unavailable."""
    found: dict[int, list[str]] = {}
    for name in store.folders(parent):
        number = name.split("-", 1)[0]
        if number.isdigit():
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
) -> int:
    """Write files, then the manifest that makes them exist; returns bytes written. Raises Unavailable.

    A file is bytes, or pieces of bytes that are hashed and written as they come: nothing is held whole in memory.
    facts: JSON values for the manifest. read_back: files that must be read as they were written before there is a manifest.
    """
    listed: dict[str, dict[str, object]] = {}
    total = 0
    for name, content in files.items():
        num_bytes, digest = store.write_chunks(f"{path}/{name}", [content] if isinstance(content, bytes) else content)
        if name in read_back:
            _read_back(store, f"{path}/{name}", digest)
        listed[name] = {"sha256": digest, "bytes": num_bytes}
        total += num_bytes
    store.write(f"{path}/{MANIFEST}", json.dumps({**facts, "files": listed}, indent=1).encode())
    return total


def _read_back(store: Store, path: str, digest: str) -> None:
    """Raises Unavailable unless a file is read as it was written; that it is not there yet is no other trouble."""
    try:
        content = store.read(path)
    except FileNotFoundError as wrong:
        raise Unavailable(f"{path} was written and is not in the store; no manifest was written") from wrong
    if hashlib.sha256(content).hexdigest() != digest:
        raise Unavailable(f"{path} is not read as it was written; no manifest was written")


def remove_folder(store: Store, path: str) -> None:
    """Take a folder away, its manifest first: at no time does it look complete and is not. Raises Unavailable."""
    store.remove(f"{path}/{MANIFEST}")
    store.remove_folder(path)


def fetch_folder(store: Store, path: str, target: Path) -> dict[str, object]:
    """Bring a complete folder here, every file checked against its digest; returns the manifest.

    Raises FileNotFoundError when there is no manifest, Unavailable when a file is missing or differs.
    """
    manifest, files = _read_manifest(store, path)
    target.mkdir(parents=True, exist_ok=True)
    for name, digest in files.items():
        try:
            content = store.read(f"{path}/{name}")
        except FileNotFoundError as wrong:
            raise Unavailable(
                f"{path}/{name} is in the manifest and not in the store {store.url}; nothing was loaded"
            ) from wrong
        if hashlib.sha256(content).hexdigest() != digest:
            raise Unavailable(f"{path}/{name}: {len(content)} bytes do not have the manifest's digest; nothing was loaded")
        part = target / f"{name}.part"
        part.write_bytes(content)
        part.replace(target / name)
    return manifest


def _read_manifest(store: Store, path: str) -> tuple[dict[str, object], dict[str, str]]:
    """The manifest, and file name to digest."""
    try:
        manifest: dict[str, object] = json.loads(store.read(f"{path}/{MANIFEST}"))
        files = manifest["files"]
        assert isinstance(files, dict)
        return manifest, {name: listed["sha256"] for name, listed in files.items()}
    except (ValueError, KeyError, TypeError, AssertionError) as wrong:
        raise Unavailable(f"{path}/{MANIFEST} is not a manifest: {wrong!r}; nothing was loaded") from wrong
