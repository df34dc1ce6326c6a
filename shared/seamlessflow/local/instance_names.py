"""Names of processes: ``host-pid-place-start``. No two processes ever have the same, whatever their hosts and pids are called.

``place`` is the kernel that runs us and the process ids that we see: two machines may share a host name, and each container
has a process 1. ``start`` is drawn at each start. Only of a process in our own place does a process id tell us anything.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = Path("/proc/self/ns/pid")
_START = secrets.token_hex(3)
ELSEWHERE = "x"
"""The place where it cannot be found out: never the same as any other."""


def place() -> str:
    """Ours, as it stands in names."""
    try:
        seen = f"{_BOOT.read_text().strip()} {_PIDS.stat().st_ino}"
    except OSError:
        return ELSEWHERE
    return hashlib.sha256(seen.encode()).hexdigest()[:8]


def instance_name(host: str, pid: int) -> str:
    """Of a process that starts here now. ``host``: of letters, digits and "-"."""
    return f"{host}-{pid}-{place()}-{_START}"


def is_here(instance: str) -> bool:
    """Whether its process id is one of those that we see. False where that is not certain."""
    parts = instance.rsplit("-", 2)
    return len(parts) == 3 and parts[1] == place() != ELSEWHERE


def is_dead(instance: str, pid: int) -> bool:
    """Whether the process is gone beyond doubt; False where that cannot be found out."""
    if not is_here(instance):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False
