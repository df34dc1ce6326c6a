"""The last file of weights that was staged: read and checked ahead, so that a pause covers no reading.

A file is known by what it is on the disk and not by its path alone: a version that is fetched again has the same path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from seamlessflow.errors import BadInput

T = TypeVar("T")


class Staging(Generic[T]):
    """``read``: a file into what can be swapped in at once; runs in a thread, raises BadInput for what does not fit."""

    def __init__(self, read: Callable[[Path], T]) -> None:
        self._read = read
        self._staged: tuple[object, T] | None = None

    async def stage(self, file: Path) -> T:
        """Read ``file`` and keep it until it is taken or another is staged; the one kept before is let go of first."""
        self._staged = None
        mark = mark_of(file)
        content = await asyncio.to_thread(self._read, file)
        self._staged = (mark, content)
        return content

    async def take(self, file: Path) -> T:
        """What ``stage`` made of ``file``, staged now where it was not; nothing is kept."""
        kept, self._staged = self._staged, None
        if kept is not None and kept[0] == mark_of(file):
            return kept[1]
        content = await self.stage(file)
        self._staged = None
        return content


def mark_of(file: Path) -> tuple[object, ...]:
    """What tells a file from another at the same path. Raises BadInput where there is none."""
    try:
        facts = file.stat()
    except OSError as wrong:
        raise BadInput(f"{file.name} cannot be read: {wrong}. Nothing was copied.") from wrong
    return file, facts.st_ino, facts.st_size, facts.st_mtime_ns
