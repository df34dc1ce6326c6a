"""A file on this machine that arrives in ranges, in any order, and over several attempts.

    nothing ─▶ preallocated ─▶ ranges written, in any order ─▶ all there, moved to where it is wanted
                    ▲                    │ cut, killed
                    └── each range that has its digest stays ◀┘

The bytes themselves say which ranges are here: each is hashed when the work is taken up again. A list beside them could be
ahead of them after a loss of power, and hashing is faster than fetching. Room is taken at the first write, all at once: a disk
that is too small says so before anything else is fetched.

One at a time: a fetch that was given up may hang in a read still while the next one is here already, and must not write into
what that one has checked. A lock of the operating system, so that nobody holds it who died.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from seamlessflow.errors import Unavailable

from .digests import hex_of, num_cores
from .stored_file import StoredFile


class PartFile:
    """``file`` as far as it is here. Every method raises OSError where the disk does not obey; those that open it Unavailable
    while somebody else writes it."""

    def __init__(self, path: Path, file: StoredFile) -> None:
        self.path, self._file, self._spans = path, file, file.spans()
        self._lock = threading.Lock()
        self._descriptor: int | None = None

    def missing(self) -> list[int]:
        """Numbers of the ranges that are not here. What an earlier attempt left and cannot be told from damage is removed."""
        everything = list(range(len(self._spans)))
        if not self._is_promising():
            self.path.unlink(missing_ok=True)
            return everything
        self._descriptor = self._take()
        with ThreadPoolExecutor(num_cores()) as pool:
            are_here = pool.map(self._is_here, everything)
            return [number for number, is_here in zip(everything, are_here, strict=True) if not is_here]

    def write(self, begin: int, content: bytes) -> None:
        """From any thread."""
        descriptor, rest = self._open(), memoryview(content)
        while rest:
            written = os.pwrite(descriptor, rest, begin)
            begin, rest = begin + written, rest[written:]

    def read(self, begin: int, end: int) -> bytes:
        """What was written there."""
        return os.pread(self._open(), end - begin, begin)

    def move_to(self, target: Path) -> None:
        """It is complete. On the same disk."""
        self._open()
        self.path.replace(target)
        self.close()

    def close(self) -> None:
        """What is here stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def remove(self) -> None:
        """Give up what is here, and its room."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _is_promising(self) -> bool:
        try:
            return bool(self._file.ranges) and self.path.stat().st_size == self._file.num_bytes
        except FileNotFoundError:
            return False

    def _is_here(self, number: int) -> bool:
        begin, end = self._spans[number]
        content = b"" if self._is_hole(begin, end) else self.read(begin, end)
        return hex_of(content, self._file.algorithm) == self._file.ranges[number]

    def _is_hole(self, begin: int, end: int) -> bool:
        """Whether nothing was ever written there, as far as the system tells."""
        if not hasattr(os, "SEEK_DATA"):
            return False
        try:
            return os.lseek(self._open(), begin, os.SEEK_DATA) >= end
        except OSError as wrong:
            return wrong.errno == errno.ENXIO  # no data up to the end

    def _open(self) -> int:
        with self._lock:
            if self._descriptor is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = self._take()
                try:
                    os.ftruncate(descriptor, 0)
                    _take_room(descriptor, self._file.num_bytes)
                except OSError:
                    os.close(descriptor)
                    raise
                self._descriptor = descriptor
            return self._descriptor

    def _take(self) -> int:
        """Opened, made where it is missing, and ours until it is closed."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not (_locked(descriptor) and os.path.samestat(os.fstat(descriptor), self.path.stat())):
                raise FileNotFoundError  # or another one was there first, and has moved it since
        except OSError as wrong:
            os.close(descriptor)
            if not isinstance(wrong, FileNotFoundError):
                raise
            raise Unavailable(f"{self.path} is being written by another fetch, and left to it") from wrong
        return descriptor


def forget_parts(folder: Path, *, keep: int) -> None:
    """Remove all but the parts written last."""
    try:
        newest_first = sorted(folder.iterdir(), key=lambda part: -part.stat().st_mtime_ns)
    except FileNotFoundError:
        return
    for part in newest_first[keep:]:
        part.unlink(missing_ok=True)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a filesystem without locks
        return True
    return True


def _take_room(descriptor: int, num_bytes: int) -> None:
    if num_bytes and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)
            return
        except OSError as wrong:
            if wrong.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a filesystem that cannot; anything else is no room
                raise
    os.ftruncate(descriptor, num_bytes)
