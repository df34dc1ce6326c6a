"""Working folders of agents: one folder for each agent-runner, named by its instance and locked by it.

The lock is an operating-system lock on the folder itself: it ends with its holder, kill -9 included, and every process that
shares the file system sees it, whatever its process ids mean (each container has a process 1).
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from pathlib import Path

from seamlessflow.errors import ConfigError

PREFIX = "agents-"
TAKE_SECONDS = 5.0
"""How long a locked folder is retried: a starting neighbour may be sweeping it."""


class WorkDirs:
    """The folder below which agents of this process have theirs, from ``take`` to ``remove``. Blocking calls."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock

    @classmethod
    def take(cls, work_dir: Path, instance: str) -> WorkDirs:
        """Make this instance's folder, empty, and remove those whose owners are gone. Raises ConfigError."""
        path = work_dir.resolve() / f"{PREFIX}{re.sub(r'[^A-Za-z0-9_.-]', '-', instance)}"
        deadline = time.monotonic() + TAKE_SECONDS
        try:
            while (lock := _make_and_lock(path)) is None:
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"another agent-runner lives in {path}; set SEAMLESSFLOW_INSTANCE or SEAMLESSFLOW_WORK_DIR so that "
                        "each has its own"
                    )
                time.sleep(0.05)
            _empty(path)
            (path / ".writable").touch()
        except OSError as wrong:
            raise ConfigError(
                f"agents need a folder to live in, but {path} cannot be written ({wrong.strerror}); set SEAMLESSFLOW_WORK_DIR"
            ) from wrong
        for left in work_dir.glob(f"{PREFIX}*"):
            if left.name != path.name:
                _remove_if_left(left)
        return cls(path, lock)

    def remove(self) -> None:
        """Remove the folder with its content, and the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _make_and_lock(path: Path) -> int | None:
    """The lock of an existing folder of this name, or None while another process holds it or has just removed it."""
    path.mkdir(parents=True, exist_ok=True)
    lock = _try_to_lock(path)
    if lock is not None and not _is_same(lock, path):
        os.close(lock)
        return None
    return lock


def _try_to_lock(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _empty(path: Path) -> None:
    for left in path.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _remove_if_left(path: Path) -> None:
    """Remove a folder whose owner is gone; without the permission it is left alone."""
    try:
        lock = _try_to_lock(path)
    except OSError:
        return
    if lock is not None:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
