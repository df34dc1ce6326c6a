"""One nats-server for each store folder: two at once would each overwrite what the other has stored.

An operating-system file lock, held by whoever took it and by every process that inherits its descriptor: gone when the last
of them is, kill -9 included.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from seamlessflow.errors import ConfigError

POLL_SECONDS = 0.02


class FolderLock:
    """``<folder>/lock``. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    def take(self, patience_seconds: float) -> int:
        """The descriptor that holds the lock, for the server to inherit. Taken already: the same one again.

        Raises ConfigError when somebody else has held it all the while.
        """
        if self._descriptor is not None:
            return self._descriptor
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + patience_seconds
            while not _locked(descriptor):
                if time.monotonic() > deadline:
                    raise ConfigError(f"{self._folder} is in use by another nats-server; nothing was started")
                time.sleep(POLL_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor

    def release(self) -> None:
        """Let go; nothing when not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
