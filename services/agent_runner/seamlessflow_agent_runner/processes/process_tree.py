"""The process tree of agents: sessions, adopted orphans, signals, limits. Linux, standard library only.

Forkservers import it, so it must stay cheap and free of threads.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None, use_errno=True).prctl
_DATA_HEADROOM_BYTES = 1 << 30


def adopt_orphans() -> None:
    """Descendants whose parent exits become our children instead of init's, so that they can be found and ended."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit_data(memory_bytes: int) -> None:
    """A ceiling for one allocation spree between two looks of the memory watch, which is the true limit.

    RLIMIT_DATA rather than RLIMIT_AS: runtimes such as node and Go reserve address space by the terabyte.
    """
    ceiling = 2 * memory_bytes + _DATA_HEADROOM_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        ceiling = min(ceiling, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (ceiling, ceiling))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def direct_children() -> list[int]:
    """Our children, adopted ones included."""
    me = os.getpid()
    listed = Path(f"/proc/{me}/task/{me}/children").read_text()
    return [int(pid) for pid in listed.split()]


def environment_entry(pid: int, name: str) -> bytes | None:
    """``NAME=value`` as a process was started with, or None. A forked agent still shows its forkserver's."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((entry for entry in entries if entry.startswith(f"{name}=".encode())), None)


def end_group(pgid: int, number: int = signal.SIGKILL) -> None:
    """Signal a whole process group, if it exists."""
    try:
        os.killpg(pgid, number)
    except (ProcessLookupError, PermissionError):
        return


def end_process(pid: int) -> None:
    """Kill one process, if it exists."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
