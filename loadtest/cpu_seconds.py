"""Processor time of a process and of all that it started, from /proc (Linux): what other load on a machine changes least.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def is_known() -> bool:
    """Whether it can be told here at all."""
    return (_PROC / "self" / "task").is_dir()


def cpu_seconds(pid: int, *, without: int | None = None) -> float:
    """Of the process and its descendants that live, without ``without`` and its own. One that has just ended counts nothing."""
    return sum(_own(each) for each in _tree(pid, without))


def _tree(pid: int, without: int | None) -> Iterator[int]:
    if pid == without:
        return
    yield pid
    for task in _listed(_PROC / str(pid) / "task"):
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from _tree(int(child), without)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _own(pid: int) -> float:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0.0
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    return (int(fields[11]) + int(fields[12])) / _TICKS
