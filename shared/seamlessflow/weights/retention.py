"""Which versions of a run stay in the store; pure. Whatever is not named here may go.

    head 23         █20 ◀ ▪21 ◀ ▪22 ◀ ▪23     the newest, and what they build on, back to a full one
    somebody reads  █10 ◀ ▪11 ◀ ▪12           a version, and what that builds on
    24-5f0c…                                  above the head: written at this moment, or by somebody who died

Always true: what stays can be had as it could before, and no folder goes that may still be written: a trainer writes the number
after the head it knows, and one whose number lies so far back is superseded. Everything else goes, once the head moved on.

Nobody compares clocks. Both sides say their word first and look afterwards:

    reader      reads the head ─▶ leases its version ─▶ reads the head again: is it among the newest still? ─▶ reads
    collector   has moved (or read) the head        ─▶ reads the leases ─▶ removes what is not among the newest, nor leased

A collector that looked before the lease was there had a head no higher than the reader's second one: among its newest was
what is among the newest then. One that looks later sees the lease. (tests/store/test_weights_keeping.py tries every order.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from seamlessflow.contracts import WeightsReading
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.manifest_folders import folders_of_versions, remove_folder, weights_path

from .manifest import VersionManifest, read_manifest

NEWEST = 4
"""So many versions up to the head always stay: readers rely on it."""

ManifestAt = Callable[[str, int], VersionManifest | None]
"""The manifest in a folder of a version; None: there is none, the folder is not complete. May raise where that cannot be told:
then nothing may be removed."""


def may_be_read(weights_version: int, head: int) -> bool:
    """What a reader asks after it leased a version: whether no collector can have looked before and be removing it now."""
    return weights_version > head - NEWEST


def stays(
    there: Mapping[int, Sequence[str]],
    manifest_at: ManifestAt,
    *,
    head: int,
    readings: Iterable[WeightsReading] = (),
    newest: int = NEWEST,
    is_over: bool = False,
    published: Mapping[int, str] | None = None,
) -> dict[str, list[str]]:
    """Folders that stay, by path, and why, in words for people.

    there: paths by version, complete or not. head: the newest version known, -1 for none. newest: how many up to it stay.
    is_over: nobody writes any more: what was not written to its end goes, and what was not ``published``, as far as is known.
    """
    roots: list[tuple[str, int]] = []
    found: dict[str, list[str]] = {}

    def keep(path: str, version: int, why: str) -> None:
        roots.append((path, version))
        found.setdefault(path, []).append(why)

    for version in sorted(there, reverse=True):
        for path in there[version] if version > head - newest else ():
            if why := _why_newest(path, version, manifest_at, head, is_over, published or {}):
                keep(path, version, why)
    for reading in readings:
        for path in [reading.path] if reading.path else there.get(reading.weights_version, ()):
            keep(path, reading.weights_version, f"read by {reading.reader} (for {reading.held_seconds:.0f} s)")
    walked: set[str] = set()
    for path, version in roots:
        _keep_line(found, walked, path, version, manifest_at)
    return found


def goes(there: Mapping[int, Sequence[str]], staying: Mapping[str, object]) -> list[tuple[int, str]]:
    """The others, lowest version first: at no time does a lower one stay that a higher one was removed for."""
    return [(version, path) for version in sorted(there) for path in there[version] if path not in staying]


def _why_newest(
    path: str, version: int, manifest_at: ManifestAt, head: int, is_over: bool, published: Mapping[int, str]
) -> str | None:
    """None: it may go all the same."""
    named = published.get(version, path if version <= head else None)
    if is_over and (manifest_at(path, version) is None or named != path):
        return None
    if version > head:
        return "above the head: it may be being written"
    return "the head" if version == head else "one of the newest"


def _keep_line(found: dict[str, list[str]], walked: set[str], path: str, version: int, manifest_at: ManifestAt) -> None:
    """Keep all that a folder builds on, back to a full version or to where the line is broken."""
    while path not in walked:
        walked.add(path)
        manifest = manifest_at(path, version)
        if manifest is None or manifest.full is not None or (base := manifest.base_at(path)) is None:
            return
        why = f"version {version} builds on it"
        path, version = base
        found.setdefault(path, []).append(why)


# Removing versions that nobody needs any more: what is there, what of it stays (``keeping``), and away with the rest.
#
# Manifests are read once: they do not change. What cannot be read keeps everything where it is until the next time.


class Collection:
    """One run's folders of versions. Methods block. Raise Unavailable when the store refuses."""

    def __init__(self, store: Store, run: str) -> None:
        self.store, self.parent = store, weights_path(run, 0).rsplit("/", 1)[0]
        self._known: dict[str, VersionManifest] = {}

    def look(self) -> dict[int, list[str]]:
        """What is there now, complete or not: paths by version, lowest first."""
        there = folders_of_versions(self.store, self.parent)
        paths = {path for each in there.values() for path in each}
        self._known = {path: manifest for path, manifest in self._known.items() if path in paths}
        return there

    def manifest_at(self, path: str, weights_version: int) -> VersionManifest | None:
        """None: the folder is not complete. Raises Unavailable, also for a manifest that makes no sense."""
        if path not in self._known:
            try:
                self._known[path] = read_manifest(self.store, path, weights_version)
            except FileNotFoundError:
                return None
        return self._known[path]

    def collect(self, head: int, readings: Iterable[WeightsReading]) -> list[str]:
        """Remove what a run that goes on does not need; returns the paths. ``readings`` were read when ``head`` was the head
        already. Where anything cannot be read, nothing is removed."""
        there = self.look()
        going = goes(there, stays(there, self.manifest_at, head=head, readings=readings))
        for _, path in going:
            self.remove(path)
        return [path for _, path in going]

    def remove(self, path: str) -> None:
        """Whoever removes the same at the same time is not in our way."""
        remove_folder(self.store, path)
        self._known.pop(path, None)
