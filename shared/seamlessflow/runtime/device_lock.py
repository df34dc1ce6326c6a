"""The device lock: two holders of one device are physically impossible, whatever messages were lost.

An operating-system file lock: it is gone with its holder, kill -9 included.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

POLL_SECONDS = 0.005


class DeviceLock:
    """The lock of one node's device. Not reentrant; one instance per process."""

    def __init__(self, work_dir: Path, node: str) -> None:
        work_dir.mkdir(parents=True, exist_ok=True)
        self._path = work_dir / f"device-{node}.lock"
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this process has the lock."""
        return self._descriptor is not None

    async def take(self) -> None:
        """Wait until the device is ours. Cancelling gives up."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(POLL_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go; nothing when not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
