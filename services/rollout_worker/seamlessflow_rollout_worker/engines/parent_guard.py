"""Processes that a library starts for us die with us, kill -9 included: no engine is left holding a device.

A ``DiesWith`` is a value that somebody else carries into the processes it starts (by pickling): unpickled there, it watches the
process it names from then on, and kills its own when that one has gone. ``PR_SET_PDEATHSIG`` does not do: it follows the
thread that started the process, and the grandchildren not at all.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time

POLL_SECONDS = 0.25
"""Where the system has no process descriptors."""

_watched: set[int] = set()


class DiesWith:
    """Carried into a process that must not outlive process ``pid``. A copy made in that process itself watches nothing."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return die_with, (self.pid,)

    def compute_hash(self) -> str:
        """vLLM caches what it compiled by what its configuration hashes to; whose child it is changes nothing."""
        return type(self).__name__


def die_with(pid: int) -> DiesWith:
    """Watch process ``pid`` from a thread of its own, once; returns what can be carried on to one's own children."""
    if pid != os.getpid() and pid not in _watched:
        _watched.add(pid)
        threading.Thread(target=_kill_after, args=(pid,), name="parent-guard", daemon=True).start()
    return DiesWith(pid)


def _kill_after(pid: int) -> None:
    _wait_for_end(pid)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # an old kernel, or a sandbox without them
        _poll_for_end(pid)
        return
    watch = select.poll()  # unlike select it takes descriptors of any number
    watch.register(descriptor, select.POLLIN)
    watch.poll()


def _poll_for_end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            time.sleep(POLL_SECONDS)
