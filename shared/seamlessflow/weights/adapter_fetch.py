"""A version that is an adapter, into a local file: the base is brought here once and kept, its copy changed.

adapter ─▶ digests, numbers? ───────────────────────────┐
base, here already or fetched ─▶ is it the adapter's? ──┴▶ a copy ─▶ merged ─▶ model.safetensors, and adapter/ beside it
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from seamlessflow.errors import BadInput, Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.manifest_folders import WEIGHTS_FILE

from .adapters import ADAPTER_CONFIG_FILE, ADAPTER_FILE, AdapterFacts, merge, pairs_of, scale_of
from .digests import split_digest
from .download import DiskTrouble, download
from .fetch_plan import Route
from .manifest import VersionManifest, read_manifest
from .safetensors_file import Bits, check_numbers, map_tensors
from .stored_file import StoredFile

ADAPTER_FOLDER = "adapter"
"""Where the adapter is left: beside a model's own files, transformers would load it once more, on top."""

FetchFull = Callable[[Store, str, int, Path], object]
"""``fetch_version``, of a version that is full."""


def fetch_adapted(
    store: Store,
    path: str,
    manifest: VersionManifest,
    target: Path,
    *,
    bases: Path | None,
    fetch_full: FetchFull,
    should_stop: Callable[[], bool] = lambda: False,
) -> Route:
    """Put base and adapter, merged, into ``target`` as ``model.safetensors``, and the adapter's files into a folder beside it.

    bases: where bases are kept, for the next version; None: nowhere. Blocks. Returns what was fetched.
    Raises Unavailable where something cannot be had or has not the bytes of its manifest; BadInput for an adapter that is no
    numbers, does not fit its base, or is another base's. There is no ``model.safetensors`` then.
    """
    whose, facts = f"weights version {manifest.weights_version}", manifest.adapter
    assert facts is not None, "only for versions that are adapters"
    scale, folder, part = scale_of(facts, whose), target / ADAPTER_FOLDER, target / f"{WEIGHTS_FILE}.part"
    scratch = target / "base"
    try:
        adapter, num_bytes = _adapter(store, path, manifest, folder, should_stop)
        base, num_fetched = _base(store, facts, bases or scratch, whose, fetch_full)
        pairs = pairs_of(adapter, facts, map_tensors(base), whose)
        shutil.copyfile(base, part)
        merge(pairs, scale, map_tensors(part, writable=True), whose)
        part.replace(target / WEIGHTS_FILE)
    except BaseException as wrong:
        part.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(wrong, OSError):
            kind = Unavailable if isinstance(wrong, FileNotFoundError) else DiskTrouble  # of the store: the base is gone
            raise kind(f"{whose}: {wrong}; nothing was loaded") from wrong
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Route(manifest.weights_version, False, (), num_bytes + num_fetched)


def _adapter(
    store: Store, path: str, manifest: VersionManifest, folder: Path, should_stop: Callable[[], bool]
) -> tuple[dict[str, Bits], int]:
    """Its tensors, all that the manifest names, and how many bytes were fetched."""
    whose, num_bytes = f"weights version {manifest.weights_version}", 0
    for name in (ADAPTER_CONFIG_FILE, ADAPTER_FILE):
        num_bytes += download(store, f"{path}/{name}", _listed(manifest, name), folder / name, should_stop=should_stop)
    tensors = map_tensors(folder / ADAPTER_FILE)
    check_numbers(tensors, whose)
    if missing := sorted((manifest.tensors or {}).keys() - tensors.keys()):
        raise BadInput(f"{whose}: its adapter has no tensor {missing[0]}; nothing was loaded")
    return tensors, num_bytes


def _listed(manifest: VersionManifest, name: str) -> StoredFile:
    if name not in manifest.files:
        raise Unavailable(f"weights version {manifest.weights_version}: its manifest names no {name}; nothing was loaded")
    return manifest.files[name]


def _base(store: Store, facts: AdapterFacts, bases: Path, whose: str, fetch_full: FetchFull) -> tuple[Path, int]:
    """The base's file on this machine, and how many bytes of it were fetched now."""
    folder = bases / split_digest(facts.base_digest)[1]
    if (folder / WEIGHTS_FILE).exists():
        return folder / WEIGHTS_FILE, 0
    try:
        found = read_manifest(store, facts.base_path, 0)
    except FileNotFoundError as wrong:
        raise Unavailable(f"{whose}: its base {facts.base_path} is not in the store; nothing was loaded") from wrong
    listed = found.full if found.adapter is None else None  # an adapter to an adapter would be merged without an end
    if listed is None or listed.digest != facts.base_digest:
        raise BadInput(
            f"{whose}: its adapter belongs to the base with digest {facts.base_digest}, and in {facts.base_path} is "
            f"{'none' if listed is None else listed.digest}; nothing was loaded"
        )
    fetch_full(store, facts.base_path, 0, folder)
    return folder / WEIGHTS_FILE, listed.num_bytes
