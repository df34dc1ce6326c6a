"""A file of a store that is a folder on the same disk: linked instead of copied, and checked like any other.

Objects in a store are written once, aside, and never changed, so a second name is as good as a second file, and outlives the
first. It costs no room and no writing; nobody may write into it (docs/adr/0021). What is checked is read by the second name:
it is what will be loaded, whatever becomes of the first meanwhile.
"""

from __future__ import annotations

from pathlib import Path

from ..object_store import ObjectStore
from .stored import StoredFile


class LinkedFile:
    """``path`` is a link to the store's object. Whoever downloads reads it once and has nothing to write: see ``PartFile``."""

    def __init__(self, store: ObjectStore, path: Path, file: StoredFile) -> None:
        self.path, self._store, self._file = path, store, file

    def missing(self) -> list[int]:
        """Numbers of the ranges that nobody has checked: all."""
        return list(range(len(self._file.spans())))

    def write(self, begin: int, content: bytes) -> None:
        """It is there."""

    def read(self, begin: int, end: int) -> bytes:
        """Within the store's time: a mount that hangs holds up nobody for ever. Raises Unavailable."""
        return self._store.read_link(self.path, begin, end)

    def move_to(self, target: Path) -> None:
        self.path.replace(target)

    def close(self) -> None:
        """Nothing is open."""

    def remove(self) -> None:
        """The store keeps its own name."""
        self.path.unlink(missing_ok=True)
