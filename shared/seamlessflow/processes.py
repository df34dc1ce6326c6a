"""Child processes that end with their parent, even when the parent is killed (Linux; elsewhere they may be left behind).

To Linux the parent is the *thread* that started the child: start it from one that lives as long as the child should.
"""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


def die_with_parent() -> None:
    """For ``preexec_fn``: ask the kernel to kill this process when its parent dies. One system call, no Python locks."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
