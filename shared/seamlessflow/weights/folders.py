"""Folders in the object store: files first, manifest last; a folder without a manifest does not exist.

``{store}/{run}/model/``                the model's config and tokenizer, written once by the trainer
``{store}/{run}/weights/{version:08d}`` ``model.safetensors``, ``delta.safetensors`` or both, then ``manifest.json`` with a
                                        digest for each file (manifests.py)

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


def weights_path(run: str, weights_version: int) -> str:
    """Folder of a version below the store."""
    return f"{run}/weights/{weights_version:08d}"


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
        if name in read_back and hashlib.sha256(store.read(f"{path}/{name}")).hexdigest() != digest:
            raise Unavailable(f"{path}/{name} is not read as it was written; no manifest was written")
        listed[name] = {"sha256": digest, "bytes": num_bytes}
        total += num_bytes
    store.write(f"{path}/{MANIFEST}", json.dumps({**facts, "files": listed}, indent=1).encode())
    return total


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
