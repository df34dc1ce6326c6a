"""Is every byte of a run's versions what was written, and can each version be made of what is there?

Versions are made one after the other, lowest first, on one local copy: full ones are fetched, changes made to the version
before. So each file is read once, and each version's tensors have the digests that its manifest names, or a fault is said.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seamlessflow.errors import SeamlessFlowError, Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.manifest_folders import WEIGHTS_FILE

from .delta import apply, parse
from .download import DiskTrouble, check_in_store, download
from .fetch import fetch_version
from .inventory import Listed
from .manifest import DELTA_FILE, VersionManifest
from .safetensors_file import check_numbers, check_tensors, map_tensors


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of a version."""

    listed: Listed
    faults: tuple[str, ...]


class Verifier:
    """``scratch``: a folder on this machine with room for two full versions. Methods block, for as long as the bytes take."""

    def __init__(self, store: Store, scratch: Path) -> None:
        self._store, self._scratch = store, scratch
        self._made_path = ""
        """Folder in the store of the version whose tensors are here, as they should be; empty: of none."""

    def verify(self, listed: Listed) -> Verified:
        """A complete version. Call it for what it builds on first. Raises Unavailable where there is no room to work."""
        assert listed.manifest is not None, "what is not complete is no version"
        faults = _Faults()
        if listed.manifest.adapter is not None:
            faults.none_of(lambda: self._merge(listed))
        else:
            self._make(listed, listed.manifest, faults)
        return Verified(listed, tuple(dict.fromkeys(faults.words)))

    def _merge(self, listed: Listed) -> None:
        target, bases = self._scratch / "merged", self._scratch / "bases"
        shutil.rmtree(target, ignore_errors=True)  # room for two is what was promised
        fetch_version(self._store, listed.path, listed.weights_version, target, bases=bases)

    def _make(self, listed: Listed, manifest: VersionManifest, faults: _Faults) -> None:
        made, delta, at_path = self._scratch / "made", self._scratch / "delta", self._made_path
        self._made_path = ""
        is_made = False
        for name in sorted(manifest.files.keys() - {WEIGHTS_FILE, DELTA_FILE}):
            faults.none_of(partial(check_in_store, self._store, f"{listed.path}/{name}", manifest.files[name]))
        if manifest.base is not None and DELTA_FILE in manifest.files:
            is_here = faults.none_of(lambda: self._fetch(listed, DELTA_FILE, delta))
            if at_path and at_path == base_path_of(listed):
                is_made = is_here and faults.none_of(lambda: _change(made, delta, manifest, f"{listed.path}/{DELTA_FILE}"))
            elif manifest.full is None:
                faults.words.append(f"it cannot be made: version {manifest.base}, which it builds on, is missing or faulty")
        if manifest.full is not None:
            is_made = faults.none_of(lambda: self._fetch(listed, WEIGHTS_FILE, made))
            is_made = is_made and faults.none_of(lambda: _check(made, manifest, f"{listed.path}/{WEIGHTS_FILE}"))
        elif manifest.base is None:
            faults.words.append(f"its manifest names neither a {WEIGHTS_FILE} nor a version that it builds on")
        self._made_path = listed.path if is_made else ""

    def _fetch(self, listed: Listed, name: str, target: Path) -> None:
        assert listed.manifest is not None
        download(self._store, f"{listed.path}/{name}", listed.manifest.files[name], target)


class _Faults:
    """Words of what went wrong with a version."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def none_of(self, check: Callable[[], object]) -> bool:
        """Whether a check went well; else its words are kept. Raises Unavailable for what is no fault of the store."""
        try:
            check()
        except (SeamlessFlowError, OSError) as wrong:
            if not isinstance(wrong, DiskTrouble) and isinstance(wrong, SeamlessFlowError | FileNotFoundError):
                self.words.append(str(wrong))
                return False
            raise Unavailable(f"this machine has no room to verify in ({wrong}): point TMPDIR at a folder that has") from wrong
        return True


def base_path_of(listed: Listed) -> str | None:
    """Folder of the version that it builds on; None: it builds on none."""
    base = None if listed.manifest is None else listed.manifest.base_at(listed.path)
    return None if base is None else base[0]


def line_of(listed: Listed, all_listed: Iterable[Listed]) -> list[Listed]:
    """What a version needs, itself last: back to a full version, or to where the line is broken."""
    by_path = {each.path: each for each in all_listed}
    line, at = [listed], listed
    while at.manifest is not None and at.manifest.full is None:
        base = by_path.get(base_path_of(at) or "")
        if base is None or base.manifest is None:
            break
        line.insert(0, base)
        at = base
    return line


def _change(made: Path, delta: Path, manifest: VersionManifest, whose: str) -> None:
    apply(parse(delta.read_bytes(), whose), map_tensors(made, writable=True))
    _check(made, manifest, whose)


def _check(made: Path, manifest: VersionManifest, whose: str) -> None:
    tensors = map_tensors(made)
    check_numbers(tensors, whose)
    if manifest.tensors is not None:
        check_tensors(tensors, manifest.tensors, whose)
