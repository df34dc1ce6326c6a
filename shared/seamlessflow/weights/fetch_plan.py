"""What to fetch to have a version: from what the reader holds, or from a full version, whichever is fewer bytes. Pure.

    full 20    21     22     23   ...   full 30     31     32
      █ ◀ ─ ─ ▪ ◀ ─ ─ ▪ ◀ ─ ─ ▪          █▪ ◀ ─ ─ ─ ▪ ◀ ─ ▪      every version names its base; ▪ is small

A version has several routes where its base goes on behind a full version; who cannot go one takes the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .manifest import VersionManifest

ManifestOf = Callable[[int], VersionManifest | None]
"""A version's manifest; None where there is none that can be read."""


@dataclass(frozen=True, slots=True)
class Route:
    """One way to a version."""

    start: int
    """The version whose tensors are complete, in the store or at the reader's."""
    is_held: bool
    """True: the reader has ``start``; False: its full file is fetched."""
    deltas: tuple[int, ...]
    """Versions whose changes are then made, in order."""
    num_bytes: int
    """To be fetched."""


def routes(weights_version: int, held: int | None, manifest_of: ManifestOf, *, num_full: int = 0) -> list[Route]:
    """The ways to a version, fewest bytes first; [] where none is complete. held None: the reader has nothing.

    Manifests are read one after the other, back to the one after what is held, or to a full version where nothing held is on
    the line;
    num_full: and on until so many full versions were met. Never beyond the second one.
    """
    found: list[Route] = []
    deltas: tuple[int, ...] = ()
    num_bytes, version = 0, weights_version
    while True:
        if version == held:
            found.append(Route(version, True, deltas, num_bytes))
        if _is_enough(found, version, held, num_full):
            break
        manifest = manifest_of(version)
        if manifest is None:
            break
        if manifest.full is not None:
            found.append(Route(version, False, deltas, num_bytes + manifest.full.num_bytes))
        if manifest.delta is None or manifest.base is None:
            break
        deltas, num_bytes, version = (version, *deltas), num_bytes + manifest.delta.num_bytes, manifest.base
    return sorted(found, key=lambda route: route.num_bytes)


def reachable(weights_version: int, manifest_of: ManifestOf) -> list[int]:
    """Versions on the line of a version, newest first, down to the nearest full one before it: what a newcomer may take
    where that version itself cannot be had."""
    found: list[int] = []
    manifest = manifest_of(weights_version)
    while manifest is not None and manifest.base is not None:
        found.append(manifest.base)
        manifest = manifest_of(manifest.base)
        if manifest is not None and manifest.full is not None:
            break
    return found


def _is_enough(found: list[Route], version: int, held: int | None, num_full: int) -> bool:
    met = sum(not route.is_held for route in found)
    return met >= 2 or (len(found) > 0 and met >= num_full and (held is None or version <= held))
