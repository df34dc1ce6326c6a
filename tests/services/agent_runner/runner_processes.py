"""Processes below a test: which are there, whether they have gone, how much memory the test itself takes."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path


def own_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def children_of(*pids: int) -> set[int]:
    return {pid for pid, parent in parents().items() if parent in pids}


def descendants() -> set[int]:
    """All processes below this one; adopted ones stay below their forkserver."""
    found: set[int] = {os.getpid()}
    while more := children_of(*found) - found:
        found |= more
    return found - {os.getpid()}


def pids_of(words: str, *, below: set[int] | None = None) -> list[int]:
    """Processes with these words in their command line."""
    fitting = []
    for pid in descendants() if below is None else below:
        with suppress(OSError):
            if words.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "):
                fitting.append(pid)
    return fitting


async def processes_gone(words: str, *, seconds: float = 4.0) -> bool:
    deadline = time.monotonic() + seconds
    while pids_of(words):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True
