"""Ctrl-C: once ends in order and says so at once, twice ends at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

EXIT_CODE = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_SECONDS = 1.0
"""What comes this soon after the first is the same wish: `timeout` signals its child and then the child's whole group."""


class Interrupt:
    """``requested`` is set by the first SIGINT or SIGTERM; the second one ends the process, and with it its children."""

    def __init__(self, report: Callable[[str], None], what: str) -> None:
        self.requested = asyncio.Event()
        self._report, self._what = report, what
        self._first = float("-inf")
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if time.monotonic() - self._first < SAME_SECONDS:
            return
        if self.requested.is_set():
            self._report("killed")
            os._exit(EXIT_CODE)  # the kernel kills the children: see processes.die_with_parent
        self._first = time.monotonic()
        self.requested.set()
        self._report(f"stopping: {self._what} (once more: at once)")


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a command that waits for a store. Ctrl-C ends it at once, after its own clean-up: threads that wait for the store are
    not waited for."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(EXIT_CODE)


# Ending tasks for certain.


ASK_AGAIN_SECONDS = 0.5


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel until all have ended, whatever they raise.

    Asked again and again: before Python 3.12 ``asyncio.wait_for``, which nats-py waits with, swallows a cancellation that
    meets the answer.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=ASK_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
