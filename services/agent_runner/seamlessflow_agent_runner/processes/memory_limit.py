"""Memory limits of agents: the memory of all their sessions is read in one pass over /proc."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

LOOK_SECONDS = 0.5
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = "/proc"


def own_bytes(statm: str) -> int:
    """Memory of a process that no file backs: resident minus shared pages of /proc/<pid>/statm."""
    _, resident, shared, *_ = statm.split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


def memory_by_session(sessions: set[int]) -> dict[int, int]:
    """Bytes of each session, summed over its processes. Pages still shared with the forkserver count as the agent's.

    A process of no agent costs one system call: a machine has hundreds, and this runs as long as agents do.
    """
    used = dict.fromkeys(sessions, 0)
    for entry in os.scandir(_PROC):
        name = entry.name
        if not name.isdigit():
            continue
        with suppress(OSError, ValueError):  # it exited meanwhile
            session = os.getsid(int(name))
            if session in used:
                used[session] += own_bytes(_content(f"{_PROC}/{name}/statm"))
    return used


def _content(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 256).decode()
    finally:
        os.close(descriptor)


class MemoryWatch:
    """Calls back when a session uses more than its limit."""

    def __init__(self) -> None:
        self._limits: dict[int, tuple[int, Callable[[int], None]]] = {}

    def watch(self, session: int, limit_bytes: int, on_exceeded: Callable[[int], None]) -> None:
        """Watch a session. ``on_exceeded``: called with its bytes, at each look above the limit."""
        self._limits[session] = (limit_bytes, on_exceeded)

    def forget(self, session: int) -> None:
        """Stop watching a session. Idempotent."""
        self._limits.pop(session, None)

    async def run(self) -> None:
        """Look every LOOK_SECONDS until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._limits:
                self.look()

    def look(self) -> None:
        """One pass over all processes."""
        for session, used in memory_by_session(set(self._limits)).items():
            limit, on_exceeded = self._limits[session]
            if used > limit:
                on_exceeded(used)
