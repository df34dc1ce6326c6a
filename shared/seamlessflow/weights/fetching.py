"""A version into a local file: by the cheapest route that leads there, every byte checked before anybody loads it.

    route ─▶ what is held, copied ─┐
          └▶ full file, digest ────┴▶ deltas, digest each ─▶ changed in place ─▶ digest of every tensor ─▶ finite? ─▶ there

A missing or damaged part costs a route, not the version: the next one is gone, and said. What cannot be checked is not used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from ..blobs import Store
from ..errors import BadInput, SeamlessFlowError, Unavailable
from .delta import apply, parse
from .folders import WEIGHTS_FILE
from .manifests import DELTA_FILE, StoredFile, VersionManifest, read_manifest
from .routes import Route, reachable, routes
from .tensorfile import Bits, check_finite, map_tensors

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Held:
    """A version that is complete on this machine."""

    weights_version: int
    file: Path


@dataclass(frozen=True, slots=True)
class Obtained:
    """What was brought here, and how."""

    weights_version: int
    route: Route


def fetch_version(
    store: Store, path: str, weights_version: int, target: Path, *, held: Held | None = None, older_will_do: bool = False
) -> Obtained:
    """Put a version's ``model.safetensors`` into the folder ``target``. Blocks.

    path: the version's folder in the store; its base versions lie beside it. held: what deltas may start from; it is left
    as it is. older_will_do: where this version is damaged, take the nearest older one that can be had.
    Raises FileNotFoundError when the version is not in the store, Unavailable when no route leads to it, BadInput when its
    values are no numbers; ``target`` holds no part of it then.
    """
    manifests = _Manifests(store, path, weights_version)
    manifests.read(weights_version)
    try:
        return Obtained(weights_version, _go_any(manifests, weights_version, target, held))
    except SeamlessFlowError as wrong:
        older = _take_older(manifests, weights_version, target, wrong) if older_will_do else None
        if older is None:
            raise
        return older


def tensor_digests(tensors: Mapping[str, Bits]) -> dict[str, str]:
    """sha256 of each tensor's bytes, on all cores."""
    largest_first = sorted(tensors, key=lambda name: -tensors[name].words.nbytes)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = dict(zip(largest_first, pool.map(lambda name: _digest(tensors[name]), largest_first), strict=True))
    return {name: found[name] for name in tensors}


class _Manifests:
    """The manifests of a version and of those it builds on, each read once."""

    def __init__(self, store: Store, path: str, weights_version: int) -> None:
        self.store = store
        self._parent = path.rsplit("/", 1)[0]
        self._paths = {weights_version: path}
        self._known: dict[int, VersionManifest | None] = {}

    def path(self, weights_version: int) -> str:
        return self._paths.get(weights_version, f"{self._parent}/{weights_version:08d}")

    def read(self, weights_version: int) -> VersionManifest:
        """Raises FileNotFoundError or Unavailable."""
        manifest = read_manifest(self.store, self.path(weights_version), weights_version)
        self._known[weights_version] = manifest
        return manifest

    def get(self, weights_version: int) -> VersionManifest | None:
        """None, and said, where it cannot be read."""
        if weights_version not in self._known:
            try:
                self.read(weights_version)
            except (FileNotFoundError, Unavailable) as wrong:
                log.warning("weights.manifest_unusable", weights_version=weights_version, reason=str(wrong))
                self._known[weights_version] = None
        return self._known[weights_version]


def _take_older(manifests: _Manifests, wanted: int, target: Path, reason: SeamlessFlowError) -> Obtained | None:
    """The newest version before ``wanted`` that can be had; None: there is none."""
    for version in reachable(wanted, manifests.get):
        try:
            route = _go_any(manifests, version, target, None)
        except SeamlessFlowError:
            continue  # said already
        log.warning("weights.older_taken", wanted=wanted, taken=version, reason=str(reason))
        return Obtained(version, route)
    return None


def _go_any(manifests: _Manifests, weights_version: int, target: Path, held: Held | None) -> Route:
    """The first route that leads there, and finite values at its end. Raises what the first of them failed with."""
    tried: list[Route] = []
    part = target / f"{WEIGHTS_FILE}.part"
    failure: SeamlessFlowError | None = None
    for num_full in (0, 1, 2):  # farther back only when the nearer ones failed
        for route in routes(weights_version, held.weights_version if held else None, manifests.get, num_full=num_full):
            if route in tried:
                continue
            tried.append(route)
            try:
                _go(manifests, route, weights_version, part, held)
            except (SeamlessFlowError, OSError) as wrong:
                part.unlink(missing_ok=True)
                failure = failure or (wrong if isinstance(wrong, SeamlessFlowError) else Unavailable(str(wrong)))
                _say_failed(weights_version, route, wrong)
                continue
            _put_in_place(part, target / WEIGHTS_FILE, weights_version)
            return route
    raise failure or Unavailable(
        f"weights version {weights_version}: no full version that it builds on is in {manifests.store.url}; nothing was loaded"
    )


def _put_in_place(part: Path, file: Path, weights_version: int) -> None:
    """Raises BadInput when a value is no number: every route leads to the same ones."""
    try:
        check_finite(map_tensors(part), f"weights version {weights_version}")
    except BadInput:
        part.unlink()
        raise
    part.replace(file)


def _say_failed(weights_version: int, route: Route, wrong: Exception) -> None:
    log.warning(
        "weights.route_failed",
        weights_version=weights_version,
        start=route.start,
        is_held=route.is_held,
        deltas=list(route.deltas),
        reason=str(wrong),
    )


def _go(manifests: _Manifests, route: Route, weights_version: int, file: Path, held: Held | None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if route.is_held:
        assert held is not None
        shutil.copyfile(held.file, file)
    else:
        file.write_bytes(_read(manifests, route.start, WEIGHTS_FILE))
    if not route.deltas:
        return
    tensors = map_tensors(file, writable=True)
    for version in route.deltas:
        whose = f"{manifests.path(version)}/{DELTA_FILE}"
        apply(parse(_read(manifests, version, DELTA_FILE), whose), tensors)
    _check_tensors(tensors, manifests.get(weights_version), weights_version)


def _read(manifests: _Manifests, weights_version: int, name: str) -> bytes:
    """A file of a version. Raises Unavailable unless it has the bytes that its manifest names."""
    manifest, path = manifests.get(weights_version), f"{manifests.path(weights_version)}/{name}"
    stored: StoredFile | None = None if manifest is None else manifest.files.get(name)
    assert stored is not None, "a route leads over files that manifests name"
    try:
        content = manifests.store.read(path)
    except FileNotFoundError as wrong:
        raise Unavailable(f"{path} is in the manifest and not in the store; nothing was loaded") from wrong
    if hashlib.sha256(content).hexdigest() != stored.sha256:
        raise Unavailable(f"{path}: {len(content)} bytes do not have the manifest's digest; nothing was loaded")
    return content


def _check_tensors(tensors: Mapping[str, Bits], manifest: VersionManifest | None, weights_version: int) -> None:
    """Raises BadInput unless every tensor is bit for bit what the writer had."""
    assert manifest is not None
    wanted = manifest.tensors or {}
    found = tensor_digests(tensors)
    if wrong := sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)):
        raise BadInput(
            f"weights version {weights_version}: after its deltas {len(wrong)} tensors are not what was published, {wrong[0]} "
            "the first; nothing was loaded"
        )


def _digest(tensor: Bits) -> str:
    return hashlib.sha256(tensor.words.view("u1").data).hexdigest()
