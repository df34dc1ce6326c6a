"""From an asyncio loop into an engine's thread and back: jobs that somebody in the loop waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *args: object) -> None:
    """Call back in the loop; nobody is left to be told when it has been closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


class AwaitedJobs:
    """The jobs that have not reported yet; lives in the loop."""

    def __init__(self) -> None:
        self._unfinished: set[asyncio.Future[None]] = set()

    async def run(self, submit: Callable[[Callable[[], None]], None], job: Callable[[], None]) -> None:
        """Hand ``job`` to the thread; return, or raise the job's error, when it has run there."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def run_and_report() -> None:
            error: Exception | None = None
            try:
                job()
            except Exception as raised:
                error = raised
            call_in(loop, _settle, done, error)

        self._unfinished.add(done)
        submit(run_and_report)
        try:
            await done
        finally:
            self._unfinished.discard(done)

    def fail_all(self, failure: Exception) -> None:
        """The thread died: nothing that is still waited for will run."""
        for done in self._unfinished:
            _settle(done, failure)


def _settle(done: asyncio.Future[None], error: Exception | None) -> None:
    """Complete ``done``, unless its waiter has gone."""
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
