"""Weights in the object store: safetensors first, manifest last; a version without a manifest does not exist.

``{store}/{run}/model/``                the model's config and tokenizer, written once by the trainer
``{store}/{run}/weights/{version:08d}`` ``model.safetensors``, then ``manifest.json`` with a digest for each file

The newest complete version is the head in the WEIGHTS bucket, moved by compare-and-set only.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from .blobs import Store
from .errors import Unavailable

MANIFEST = "manifest.json"
WEIGHTS_FILE = "model.safetensors"


def weights_path(run: str, weights_version: int) -> str:
    """Folder of a version below the store."""
    return f"{run}/weights/{weights_version:08d}"


def model_path(run: str) -> str:
    """Folder of the model's config and tokenizer below the store."""
    return f"{run}/model"


def publish_folder(store: Store, path: str, files: dict[str, bytes], facts: dict[str, object]) -> int:
    """Write files, then the manifest that makes them exist; returns bytes written. Raises Unavailable."""
    manifest: dict[str, object] = {**facts, "files": {}}
    listed: dict[str, dict[str, object]] = {}
    for name, content in files.items():
        store.write(f"{path}/{name}", content)
        listed[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    manifest["files"] = listed
    store.write(f"{path}/{MANIFEST}", json.dumps(manifest, indent=1).encode())
    return sum(map(len, files.values()))


def fetch_folder(store: Store, path: str, target: Path) -> dict[str, object]:
    """Bring a complete folder here, every file checked against its digest; returns the manifest.

    Raises FileNotFoundError when there is no manifest, Unavailable when a file is missing or differs.
    """
    manifest: dict[str, object] = json.loads(store.read(f"{path}/{MANIFEST}"))
    files = manifest["files"]
    assert isinstance(files, dict)
    target.mkdir(parents=True, exist_ok=True)
    for name, expected in files.items():
        content = store.read(f"{path}/{name}")
        if hashlib.sha256(content).hexdigest() != expected["sha256"]:
            raise Unavailable(f"{path}/{name}: {len(content)} bytes do not have the manifest's digest; nothing was loaded")
        part = target / f"{name}.part"
        part.write_bytes(content)
        part.replace(target / name)
    return manifest
