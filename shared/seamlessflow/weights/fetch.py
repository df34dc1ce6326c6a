"""A version into a local file: by the cheapest route that leads there, every byte checked before anybody loads it.

    route ─▶ what is held, copied ─┐
          └▶ full file, digest ────┴▶ deltas, digest each ─▶ changed in place ─▶ digest of every tensor ─▶ NaN? ─▶ there

A missing or damaged part costs a route, not the version: the next one is gone, and said. What cannot be checked is not used.
The small files are fetched first and kept until the end, and no way is tried over a file that was bad once.
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from seamlessflow.errors import BadInput, SeamlessFlowError, Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.manifest_folders import WEIGHTS_FILE, folders_of_versions, numbered_path

from .adapter_fetch import fetch_adapted
from .delta import apply, parse
from .download import DiskTrouble, download
from .fetch_plan import Route, reachable, routes
from .manifest import DELTA_FILE, VersionManifest, read_manifest
from .safetensors_file import check_numbers, check_tensors, map_tensors

# A version and those it builds on, for one fetch: each manifest and each delta is read once, what was bad stays bad.


log = structlog.get_logger()


class Sources:
    """Where the parts of a version are, and which of them were bad.

    path: the version's folder. scratch: for deltas, removed by whoever made it. parts, may_link, should_stop: see ``download``.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        weights_version: int,
        scratch: Path,
        *,
        parts: Path | None = None,
        may_link: bool = False,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.store, self.parts, self.may_link, self.should_stop = store, parts, may_link, should_stop
        self._parent = path.rsplit("/", 1)[0]
        self._paths = {weights_version: path}
        self._known: dict[int, VersionManifest | None] = {}
        self._scratch = scratch
        self._bad: set[tuple[int, str]] = set()

    def path(self, weights_version: int) -> str:
        return self._paths.get(weights_version, numbered_path(self._parent, weights_version))

    def read(self, weights_version: int) -> VersionManifest:
        """Raises FileNotFoundError, or Unavailable: also where the fetch is to stop."""
        self._known[weights_version] = None
        if self.should_stop():
            raise Unavailable(f"the fetch of weights version {weights_version} was given up")
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
        """Versions before this one, newest first: its line, or all that the store lists where its manifest cannot be read, or
        is of an adapter, which stands on no other version."""
        manifest = self.get(weights_version)
        if manifest is not None and manifest.adapter is None:
            yield from reachable(weights_version, self.get)
            return
        try:
            listed = folders_of_versions(self.store, self._parent)
        except Unavailable:
            return
        for version in sorted((each for each in listed if each < weights_version), reverse=True):
            if self.should_stop():
                return
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
            self.fetch(weights_version, DELTA_FILE, file)
        return file

    def fetch(self, weights_version: int, name: str, target: Path, *, is_changed: bool = False) -> None:
        """Bring a file of a version here, for a caller who will change it there (is_changed) or not. Raises Unavailable, and it
        is bad from then on, unless it has the bytes of the manifest. Of full files what arrived is kept for a later fetch:
        deltas are small."""
        manifest = self.get(weights_version)
        assert manifest is not None, "routes lead over complete versions only"
        parts = self.parts if name == WEIGHTS_FILE else None
        try:
            path = f"{self.path(weights_version)}/{name}"
            download(
                self.store,
                path,
                manifest.files[name],
                target,
                parts=parts,
                may_link=self.may_link and not is_changed,
                should_stop=self.should_stop,
            )
        except Unavailable:
            self.mark_bad(weights_version, name)
            raise


# A version's file along one route: what it starts from, then the changes, then the digest of every tensor.


@dataclass(frozen=True, slots=True)
class Held:
    """A version that is complete on this machine."""

    weights_version: int
    file: Path


def build(sources: Sources, route: Route, weights_version: int, file: Path, held: Held | None) -> None:
    """Make ``file`` the version's, along a route. held: where the route starts with it. The small files are fetched first.

    Blocks.
    Raises Unavailable or BadInput, and OSError where the disk refuses; ``file`` may hold anything then.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    deltas = {version: sources.delta(version) for version in route.deltas}
    if route.is_held:
        assert held is not None
        shutil.copyfile(held.file, file)
    else:
        sources.fetch(route.start, WEIGHTS_FILE, file, is_changed=bool(route.deltas))
    if not route.deltas:
        return
    tensors = map_tensors(file, writable=True)
    for version, delta in deltas.items():
        try:
            apply(parse(_mapped(delta), f"{sources.path(version)}/{DELTA_FILE}"), tensors)
        except BadInput:
            if not route.is_held:  # what is held may be to blame for it itself
                sources.mark_bad(version, DELTA_FILE)
            raise
    manifest = sources.get(weights_version)
    assert manifest is not None
    check_tensors(tensors, manifest.tensors or {}, f"weights version {weights_version}")


def _mapped(file: Path) -> memoryview:
    """Its bytes, read as they are needed."""
    with file.open("rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) if file.stat().st_size else b"")


@dataclass(frozen=True, slots=True)
class Obtained:
    """What was brought here, and how."""

    weights_version: int
    route: Route


def fetch_version(
    store: Store,
    path: str,
    weights_version: int,
    target: Path,
    *,
    held: Held | None = None,
    older_will_do: bool = False,
    bases: Path | None = None,
    parts: Path | None = None,
    may_link: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Obtained:
    """Put a version's ``model.safetensors`` into the folder ``target``. Blocks.

    path: the version's folder in the store; its manifest says where its base is. held: what deltas may start from; it is left
    as it is. older_will_do: where this version is damaged or not in the store, take the nearest older one that can be had.
    (Of a version that was collected there is none: older ones went first.)
    bases: of a version that is an adapter, where the base it is merged into is kept for the next one; None: nowhere.
    parts: where what arrived of a full file is kept when the rest cannot be had, so that the next fetch goes on from there;
    None: nowhere. may_link: nobody will write into the file, so it may be the store's own. should_stop: looked at often; the
    fetch then ends with Unavailable.
    Raises FileNotFoundError when the version is not in the store, Unavailable when no route leads to it, BadInput when a
    value is NaN; ``target`` holds no part of it then.
    """
    versions = Sources(store, path, weights_version, target / "deltas", parts=parts, may_link=may_link, should_stop=should_stop)
    try:
        versions.read(weights_version)
        return Obtained(weights_version, _go_any(versions, weights_version, target, held, bases))
    except (SeamlessFlowError, FileNotFoundError) as wrong:
        older = _take_older(versions, weights_version, target, wrong, bases) if older_will_do else None
        if older is None:
            raise
        return older
    finally:
        shutil.rmtree(target / "deltas", ignore_errors=True)


def _take_older(versions: Sources, wanted: int, target: Path, reason: Exception, bases: Path | None) -> Obtained | None:
    """The newest version before ``wanted`` that can be had; None: there is none."""
    for version in versions.older(wanted):
        if versions.should_stop():
            break
        try:
            route = _go_any(versions, version, target, None, bases)
        except SeamlessFlowError:
            continue  # said already
        log.warning("weights.older_taken", wanted=wanted, taken=version, reason=str(reason))
        return Obtained(version, route)
    return None


def _go_any(versions: Sources, weights_version: int, target: Path, held: Held | None, bases: Path | None) -> Route:
    """The first route that leads there, and numbers at its end. Raises what the first of them failed with."""
    if (manifest := versions.get(weights_version)) is not None and manifest.adapter is not None:
        path = versions.path(weights_version)
        stop = versions.should_stop
        fetch_full = partial(fetch_version, parts=versions.parts, may_link=versions.may_link, should_stop=stop)
        return fetch_adapted(versions.store, path, manifest, target, bases=bases, fetch_full=fetch_full, should_stop=stop)
    tried: list[Route] = []
    part = target / f"{WEIGHTS_FILE}.part"
    failure: SeamlessFlowError | None = None
    for num_full in (0, 1, 2):  # farther back only when the nearer ones failed
        for route in routes(weights_version, held.weights_version if held else None, versions.get, num_full=num_full):
            if route in tried or versions.is_bad(route) or (failure is not None and versions.should_stop()):
                continue
            tried.append(route)
            try:
                build(versions, route, weights_version, part, held)
            except (SeamlessFlowError, OSError) as wrong:
                part.unlink(missing_ok=True)
                failure = failure or (wrong if isinstance(wrong, SeamlessFlowError) else DiskTrouble(str(wrong)))
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
