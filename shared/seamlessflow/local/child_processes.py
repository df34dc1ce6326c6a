"""Child processes that end with their parent, even when the parent is killed, and processes that keep their secrets (Linux).

Elsewhere children of a killed parent may be left behind, and nothing is hidden. To Linux the parent is the *thread* that
started the child: start it from one that lives as long as the child should. Standard library only and free of threads: the
interpreters that agents are forked from import it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform.startswith("linux") else None


def die_with_parent(parent: int) -> None:
    """Be killed when the process ``parent``, which started this one, dies; exit now if it died already.

    For the child itself, or as ``preexec_fn=partial(die_with_parent, os.getpid())``: two system calls, no Python locks.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def outlive_parent() -> None:
    """Undo ``die_with_parent``, for a process that notices its parent's death itself and has to tidy up first."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def hide_secrets() -> None:
    """From now on other processes of the same user cannot read this one's environment or memory; no core dump either.

    Children made by fork are hidden too until ``show_oneself``; children made by exec are not. What everybody may read of a
    process (its command line, its memory use) stays readable.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def show_oneself() -> None:
    """Undo ``hide_secrets``, for a forked child that has none."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
