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

from ..contracts import WeightsReading
from .manifests import VersionManifest

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
