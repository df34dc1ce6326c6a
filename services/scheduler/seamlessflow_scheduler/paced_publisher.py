"""Saying what is due a slice at a time, so that events and ticks get in between.

    event ──▶ taken in ──▶ tick: leases are written ──▶ go() ──▶ slice ──▶ slice ──▶ … ──▶ nothing is due
                 └ pause(): it may change roles

A step taken may open thousands of episodes, and a device that waits for its lease costs more than an episode that is not
open yet. So a voice speaks only after a tick has written leases, falls silent when roles may change again, and gives the turn
back as soon as somebody waits for it. It keeps nothing in mind: each slice is decided anew from the picture of the run, so
whoever goes on after a death in the middle of it says exactly what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

import structlog

from seamlessflow.errors import SeamlessFlowError

log = structlog.get_logger()


class Turn:
    """A lock, first come first served, that tells its holder whether somebody waits for it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._num_waiting = 0

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits."""
        return self._num_waiting > 0

    async def __aenter__(self) -> None:
        self._num_waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._num_waiting -= 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()


class Voice:
    """Paces what one run publishes. ``publish_slice`` is called with the turn held and tells whether more may be due."""

    def __init__(self, run: str, turn: Turn, publish_slice: Callable[[], Awaitable[bool]], said: Callable[[], None]) -> None:
        self._run, self._turn, self._publish_slice, self._said = run, turn, publish_slice, said
        self._may_publish = asyncio.Event()
        self.num_pauses = 0
        """How often roles were about to change."""
        self._task = asyncio.create_task(self._speak())

    def go(self, num_pauses: int) -> None:
        """Leases of a plan that knew of so many pauses are written: say what is due, unless there was another pause since.

        Raises what ended the voice, a mistake of ours.
        """
        if self._task.done():
            self._task.result()
        if num_pauses == self.num_pauses:
            self._may_publish.set()

    def pause(self) -> None:
        """Say nothing more until leases are written. To be called by who holds the turn."""
        self.num_pauses += 1
        self._may_publish.clear()

    async def end(self) -> None:
        """Fall silent for good; what was not said is due for whoever goes on."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)  # a mistake was raised by ``go``

    async def _speak(self) -> None:
        spoke = False
        while True:
            await self._may_publish.wait()
            async with self._turn:
                if not self._may_publish.is_set():  # something else came first
                    continue
                try:
                    more = await self._publish_slice()
                except SeamlessFlowError as wrong:  # the journal holds what was said; the next tick says the rest
                    log.warning("run.delayed", run=self._run, reason=str(wrong))
                    more = False
                if not more:
                    self._may_publish.clear()
            if spoke and not more:
                self._said()
            spoke = more
            await asyncio.sleep(0)  # a bus in memory does not wait for anything
