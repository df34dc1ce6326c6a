"""A version into a local file: by the cheapest route that leads there, every byte checked before anybody loads it.

    route ─▶ what is held, copied ─┐
          └▶ full file, digest ────┴▶ deltas, digest each ─▶ changed in place ─▶ digest of every tensor ─▶ NaN? ─▶ there

A missing or damaged part costs a route, not the version: the next one is gone, and said. What cannot be checked is not used.
The small files are fetched first and kept until the end, and no way is tried over a file that was bad once.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from ..blobs import Store
from ..errors import BadInput, SeamlessFlowError, Unavailable
from .cores import num_cores
from .delta import apply, parse
from .folders import WEIGHTS_FILE, folders_of_versions
from .manifests import DELTA_FILE, VersionManifest, read_manifest
from .routes import Route, reachable, routes
from .tensorfile import Bits, check_numbers, map_tensors

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

    path: the version's folder in the store; its manifest says where its base is. held: what deltas may start from; it is left
    as it is. older_will_do: where this version is damaged or not in the store, take the nearest older one that can be had.
    (Of a version that was collected there is none: older ones went first.)
    Raises FileNotFoundError when the version is not in the store, Unavailable when no route leads to it, BadInput when a
    value is NaN; ``target`` holds no part of it then.
    """
    versions = _Versions(store, path, weights_version, target / "deltas")
    try:
        versions.read(weights_version)
        return Obtained(weights_version, _go_any(versions, weights_version, target, held))
    except (SeamlessFlowError, FileNotFoundError) as wrong:
        older = _take_older(versions, weights_version, target, wrong) if older_will_do else None
        if older is None:
            raise
        return older
    finally:
        shutil.rmtree(target / "deltas", ignore_errors=True)


def tensor_digests(tensors: Mapping[str, Bits]) -> dict[str, str]:
    """sha256 of each tensor's bytes, on several cores."""
    largest_first = sorted(tensors, key=lambda name: -tensors[name].words.nbytes)
    with ThreadPoolExecutor(num_cores()) as pool:
        found = dict(zip(largest_first, pool.map(lambda name: _digest(tensors[name]), largest_first), strict=True))
    return {name: found[name] for name in tensors}


class _Versions:
    """A version and those it builds on, for one fetch: each manifest and each delta is read once, what was bad stays bad."""

    def __init__(self, store: Store, path: str, weights_version: int, scratch: Path) -> None:
        self.store = store
        self._parent = path.rsplit("/", 1)[0]
        self._paths = {weights_version: path}
        self._known: dict[int, VersionManifest | None] = {}
        self._scratch = scratch
        self._bad: set[tuple[int, str]] = set()

    def path(self, weights_version: int) -> str:
        return self._paths.get(weights_version, f"{self._parent}/{weights_version:08d}")

    def read(self, weights_version: int) -> VersionManifest:
        """Raises FileNotFoundError or Unavailable."""
        self._known[weights_version] = None
        manifest = read_manifest(self.store, self.path(weights_version), weights_version)
        self._known[weights_version] = manifest
        if manifest.base is not None and manifest.base_path is not None:
            self._paths.setdefault(manifest.base, manifest.base_path)
        return manifest

    def get(self, weights_version: int) -> VersionManifest | None:
        """None, and said, where it cannot be read."""
        if weights_version not in self._known:
            try:
                self.read(weights_version)
            except (FileNotFoundError, Unavailable) as wrong:
                log.warning("weights.manifest_unusable", weights_version=weights_version, reason=str(wrong))
        return self._known[weights_version]

    def older(self, weights_version: int) -> Iterator[int]:
        """Versions before this one, newest first: its line, or where its manifest cannot be read all that the store lists."""
        if self.get(weights_version) is not None:
            yield from reachable(weights_version, self.get)
            return
        try:
            listed = folders_of_versions(self.store, self._parent)
        except Unavailable:
            return
        for version in sorted((each for each in listed if each < weights_version), reverse=True):
            complete = [path for path in listed[version] if self._may_be_there(path, version)]
            if len(complete) == 1:  # of two attempts nobody here knows which one was published
                self._paths.setdefault(version, complete[0])
            if version in self._paths:
                yield version

    def _may_be_there(self, path: str, weights_version: int) -> bool:
        """Whether a folder has a manifest, or one that cannot be read: what cannot be told counts as another attempt."""
        try:
            read_manifest(self.store, path, weights_version)
        except FileNotFoundError:
            return False
        except Unavailable:
            return True
        return True

    def is_bad(self, route: Route) -> bool:
        """Whether it leads over a file that could not be used."""
        needed = {(version, DELTA_FILE) for version in route.deltas}
        return bool(self._bad & (needed if route.is_held else needed | {(route.start, WEIGHTS_FILE)}))

    def mark_bad(self, weights_version: int, name: str) -> None:
        self._bad.add((weights_version, name))

    def delta(self, weights_version: int) -> Path:
        """A version's delta on this machine, until the fetch ends. Raises Unavailable."""
        file = self._scratch / f"{weights_version:08d}"
        if not file.exists():
            self._scratch.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(".part")
            part.write_bytes(self.content(weights_version, DELTA_FILE))
            part.replace(file)
        return file

    def content(self, weights_version: int, name: str) -> bytes:
        """A file of a version. Raises Unavailable, and it is bad from then on, unless it has the bytes of the manifest."""
        manifest, path = self.get(weights_version), f"{self.path(weights_version)}/{name}"
        assert manifest is not None, "routes lead over complete versions only"
        try:
            content = self.store.read(path)
            if hashlib.sha256(content).hexdigest() == manifest.files[name].sha256:
                return content
        except FileNotFoundError as wrong:
            self.mark_bad(weights_version, name)
            raise Unavailable(f"{path} is in the manifest and not in the store; nothing was loaded") from wrong
        except Unavailable:
            self.mark_bad(weights_version, name)
            raise
        self.mark_bad(weights_version, name)
        raise Unavailable(f"{path}: {len(content)} bytes do not have the manifest's digest; nothing was loaded")


def _take_older(versions: _Versions, wanted: int, target: Path, reason: Exception) -> Obtained | None:
    """The newest version before ``wanted`` that can be had; None: there is none."""
    for version in versions.older(wanted):
        try:
            route = _go_any(versions, version, target, None)
        except SeamlessFlowError:
            continue  # said already
        log.warning("weights.older_taken", wanted=wanted, taken=version, reason=str(reason))
        return Obtained(version, route)
    return None


def _go_any(versions: _Versions, weights_version: int, target: Path, held: Held | None) -> Route:
    """The first route that leads there, and numbers at its end. Raises what the first of them failed with."""
    tried: list[Route] = []
    part = target / f"{WEIGHTS_FILE}.part"
    failure: SeamlessFlowError | None = None
    for num_full in (0, 1, 2):  # farther back only when the nearer ones failed
        for route in routes(weights_version, held.weights_version if held else None, versions.get, num_full=num_full):
            if route in tried or versions.is_bad(route):
                continue
            tried.append(route)
            try:
                _go(versions, route, weights_version, part, held)
            except (SeamlessFlowError, OSError) as wrong:
                part.unlink(missing_ok=True)
                failure = failure or (wrong if isinstance(wrong, SeamlessFlowError) else Unavailable(str(wrong)))
                _say_failed(weights_version, route, wrong)
                continue
            _put_in_place(part, target / WEIGHTS_FILE, weights_version)
            return route
    raise failure or Unavailable(
        f"weights version {weights_version}: no full version that it builds on can be had from {versions.store.url}; "
        "nothing was loaded"
    )


def _put_in_place(part: Path, file: Path, weights_version: int) -> None:
    """Raises BadInput when a value is NaN: every route leads to the same ones."""
    try:
        check_numbers(map_tensors(part), f"weights version {weights_version}")
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


def _go(versions: _Versions, route: Route, weights_version: int, file: Path, held: Held | None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    deltas = {version: versions.delta(version) for version in route.deltas}
    if route.is_held:
        assert held is not None
        shutil.copyfile(held.file, file)
    else:
        file.write_bytes(versions.content(route.start, WEIGHTS_FILE))
    if not route.deltas:
        return
    tensors = map_tensors(file, writable=True)
    for version, delta in deltas.items():
        try:
            apply(parse(delta.read_bytes(), f"{versions.path(version)}/{DELTA_FILE}"), tensors)
        except BadInput:
            if not route.is_held:  # what is held may be to blame for it itself
                versions.mark_bad(version, DELTA_FILE)
            raise
    _check_tensors(tensors, versions.get(weights_version), weights_version)


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
