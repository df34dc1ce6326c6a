"""How many threads work on weights at a time."""

from __future__ import annotations

import os

MOST_THREADS = 16
"""More do not help: memory is the limit by then, and others live on the machine."""


def num_cores() -> int:
    """The cores this process may use, as a container or its starter bound it; not all that the machine has."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not there: no Linux
    return min(bound, MOST_THREADS)
