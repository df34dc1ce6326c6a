"""A version and those it builds on, for one fetch: each manifest and each delta is read once, what was bad stays bad."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from ..blobs import Store
from ..errors import Unavailable
from .downloads import download
from .folders import WEIGHTS_FILE, folders_of_versions, numbered_path
from .manifests import DELTA_FILE, VersionManifest, read_manifest
from .routes import Route, reachable

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
