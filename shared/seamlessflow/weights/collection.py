"""Removing versions that nobody needs any more: what is there, what of it stays (``keeping``), and away with the rest.

Manifests are read once: they do not change. What cannot be read keeps everything where it is until the next time.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..blobs import Store
from ..contracts import WeightsReading
from .folders import folders_of_versions, remove_folder, weights_path
from .keeping import goes, stays
from .manifests import VersionManifest, read_manifest


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
