"""Files of a store that is a folder on this machine: a second name for one, and no writing into any. Plain system calls.

Whoever calls them gives them a time limit (store_calls.py); one that was given up must not act behind its caller's back.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

_WRITING = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def make_link(source: str, link: Path, num_bytes: int, is_given_up: Callable[[], bool]) -> bool:
    """Call a regular file ``link`` as well; False, and no link is left, for one that is something else, a symbolic link too,
    or has other than so many bytes. Raises OSError, or NotImplementedError where the system cannot."""
    os.link(source, link, follow_symlinks=False)
    found = link.lstat()
    is_right = stat.S_ISREG(found.st_mode) and found.st_size == num_bytes
    if not is_right or is_given_up():
        link.unlink()
    return is_right


def read_at(file: Path, start: int, end: int) -> bytes:
    """Its bytes from ``start`` to ``end``, fewer where it ends before. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        return os.pread(descriptor, end - start, start)
    finally:
        os.close(descriptor)


def forbid_writing(file: Path) -> None:
    """For everybody, its owner too; who may read it stays as it is. Raises OSError."""
    file.chmod(stat.S_IMODE(file.stat().st_mode) & ~_WRITING)
