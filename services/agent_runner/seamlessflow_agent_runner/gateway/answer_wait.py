"""Waiting for answers, however long they take.

An answer normally comes as a hint on this process's inbox, which no look stands in the way of. If hints are lost it is found
in the journal, where each waiter looks after a second, then after twice as long each time. Most wait for the same reason, such
as a device that trains: so one look for all of them tells whether anything was answered at all since, and only then each looks
for its own. The text that comes before an answer is only hinted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from seamlessflow.bus.base import Bus
from seamlessflow.codec import decode
from seamlessflow.contracts import AnswerDelta, CallAnswered, CallRequested
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.runtime import Journal

# The text of an answer while it is sampled, put together from hints that may be lost, late or double.
#
# It only grows. What a lost hint leaves out, and all that is no text, comes with the whole answer. Pure, futures aside.


class Progress:
    """Of one call. ``grown`` is done as soon as there is more than when it was asked for."""

    def __init__(self) -> None:
        self.reasoning, self.content = "", ""
        self._grown: asyncio.Future[None] | None = None

    @property
    def grown(self) -> asyncio.Future[None]:
        if self._grown is None or self._grown.done():
            self._grown = asyncio.get_running_loop().create_future()
        return self._grown

    @property
    def has_text(self) -> bool:
        return bool(self.reasoning or self.content)

    def add(self, delta: AnswerDelta) -> None:
        """Take in a hint."""
        self.reasoning = joined(self.reasoning, delta.reasoning_start, delta.reasoning)
        self.content = joined(self.content, delta.content_start, delta.content)
        if self._grown is not None and not self._grown.done():
            self._grown.set_result(None)


def joined(text: str, start: int, more: str) -> str:
    """``text``, and behind it what of ``more``, which begins at ``start``, it does not have. A gap adds nothing."""
    return text if start > len(text) else text + more[len(text) - start :]


class Unsent:
    """What one stream has not said yet of an answer's texts."""

    def __init__(self) -> None:
        self._reasoning, self._content = "", ""

    def take(self, reasoning: str, content: str) -> tuple[str, str]:
        """The new end of both, which is said from now on. A text that does not begin with what was said has none."""
        new = _end(reasoning, self._reasoning), _end(content, self._content)
        self._reasoning, self._content = self._reasoning + new[0], self._content + new[1]
        return new

    def fits(self, answer: CallAnswered) -> bool:
        """Whether what was said is what the answer says."""
        reasoning, content = texts_of(answer)
        return reasoning.startswith(self._reasoning) and content.startswith(self._content)


def _end(whole: str, said: str) -> str:
    return whole[len(said) :] if whole.startswith(said) else ""


def texts_of(answer: CallAnswered) -> tuple[str, str]:
    """Reasoning and content of an answer, empty where it has none."""
    return answer.message.get("reasoning_content") or "", answer.message.get("content") or ""


log = structlog.get_logger()

FIRST_LOOK_SECONDS = 1.0
LONGEST_LOOK_SECONDS = 8.0
"""Between two looks of a waiter: so much later is an answer found whose hint was lost."""
_FRESH_SECONDS = 0.25
"""For how long what one waiter saw is good for the others."""


@dataclass(eq=False, slots=True)
class Waiter:
    """Waits for one call's answer."""

    event: CallRequested
    progress: Progress
    hinted: asyncio.Future[CallAnswered] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Answers:
    """All that this process waits for. ``inbox`` is where it is hinted to."""

    def __init__(self, bus: Bus, journal: Journal) -> None:
        self._bus, self._journal = bus, journal
        self.inbox = bus.inbox()
        self._waiters: dict[str, Waiter] = {}
        self._unsubscribe: Callable[[], Awaitable[None]] | None = None
        self._newest = Newest(bus)

    async def open(self) -> None:
        """Listen for hints."""
        self._unsubscribe = await self._bus.on_hint(self.inbox, self._on_hint)

    async def close(self) -> None:
        if self._unsubscribe is not None:
            await self._unsubscribe()

    def expect(self, event: CallRequested, progress: Progress) -> Waiter:
        """From here on hints are taken; before the call is said, so that none is missed. ``answer`` ends it."""
        waiter = self._waiters[event.call] = Waiter(event, progress)
        return waiter

    def forget(self, waiter: Waiter) -> None:
        del self._waiters[waiter.event.call]

    async def answer(self, waiter: Waiter, asked_at: int) -> CallAnswered:
        """The answer. ``asked_at``: sequence of its call in the journal."""
        looked_until, pause = asked_at, FIRST_LOOK_SECONDS
        while True:
            await asyncio.wait({waiter.hinted}, timeout=pause)
            if not waiter.hinted.done():
                look = asyncio.create_task(self._look(waiter.event, looked_until))
                first: list[asyncio.Future[Any]] = [waiter.hinted, look]
                try:
                    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    look.cancel()
            if waiter.hinted.done():
                return waiter.hinted.result()
            answer, looked_until = look.result()
            if answer is not None:
                return answer
            pause = min(2 * pause, LONGEST_LOOK_SECONDS)

    async def _look(self, event: CallRequested, looked_until: int) -> tuple[CallAnswered | None, int]:
        """The answer if it is stored, and up to which sequence the journal is now known not to hold it."""
        try:
            newest = await self._newest.answer(event.run)
            if newest <= looked_until:
                return None, looked_until
            found = await self._journal.first(CallAnswered, event.run, episode=event.episode, call=event.call)
            return found, newest
        except SeamlessFlowError as wrong:
            log.warning("answer.unreadable", call=event.call, episode=event.episode, reason=str(wrong))
            return None, looked_until

    async def _on_hint(self, payload: bytes) -> None:
        try:
            said = decode(self.inbox, payload)
        except SeamlessFlowError as wrong:
            log.warning("hint.malformed", reason=str(wrong))
            return
        if not isinstance(said, CallAnswered | AnswerDelta) or said.call not in self._waiters:
            return
        waiter = self._waiters[said.call]
        if isinstance(said, AnswerDelta):
            waiter.progress.add(said)
        elif not waiter.hinted.done():
            waiter.hinted.set_result(said)


class Newest:
    """The sequence of the newest answer in a run's journal, read at most every ``_FRESH_SECONDS``, whoever asks."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._turn = asyncio.Lock()
        self._known: dict[str, tuple[float, int]] = {}

    async def answer(self, run: str) -> int:
        """0: nothing was answered yet. Raises Unavailable."""
        async with self._turn:
            read_at, seq = self._known.get(run, (-_FRESH_SECONDS, 0))
            now = time.monotonic()
            if now - read_at >= _FRESH_SECONDS:
                record = await self._bus.last(journal_stream(run), subject_filter(CallAnswered, run=run))
                seq = 0 if record is None else record.seq
                self._known = {run: (now, seq)}
            return seq
