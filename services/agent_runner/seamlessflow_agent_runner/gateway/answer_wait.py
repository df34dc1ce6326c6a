"""Waiting for the answers of calls, however long they take.

An answer normally comes as a hint on this process's inbox. If hints are lost, the waiter finds it in the journal, where it
looks after a second, then after twice as long each time; a look never delays a hint. Most waiters wait for the same reason,
such as a device that trains: one look for all of them shows whether the run has any newer answer, and only then each looks
for its own. Text before the whole answer comes in hints alone.
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


class AnswerProgress:
    """The text of one call's answer while it is sampled, put together from hints that may be lost, late or double.

    It only grows. Text of lost hints, and everything that is no text, comes with the whole answer. Pure, futures aside.
    """

    def __init__(self) -> None:
        self.reasoning, self.content = "", ""
        self._grown: asyncio.Future[None] | None = None

    @property
    def grown(self) -> asyncio.Future[None]:
        """Done as soon as there is more text than at this call."""
        if self._grown is None or self._grown.done():
            self._grown = asyncio.get_running_loop().create_future()
        return self._grown

    @property
    def has_text(self) -> bool:
        """Whether any text has come."""
        return bool(self.reasoning or self.content)

    def add(self, delta: AnswerDelta) -> None:
        """Append the new text of a hint."""
        self.reasoning = joined(self.reasoning, delta.reasoning_start, delta.reasoning)
        self.content = joined(self.content, delta.content_start, delta.content)
        if self._grown is not None and not self._grown.done():
            self._grown.set_result(None)


def joined(text: str, start: int, more: str) -> str:
    """``text`` extended by ``more``, which begins at its character ``start``. A gap adds nothing."""
    return text if start > len(text) else text + more[len(text) - start :]


class Unsent:
    """The part of an answer's texts that one stream has not sent yet."""

    def __init__(self) -> None:
        self._reasoning, self._content = "", ""

    def take(self, reasoning: str, content: str) -> tuple[str, str]:
        """The unsent ends of both texts, which count as sent from now on. Empty for a text that contradicts the sent part."""
        new = _end(reasoning, self._reasoning), _end(content, self._content)
        self._reasoning, self._content = self._reasoning + new[0], self._content + new[1]
        return new

    def fits(self, answer: CallAnswered) -> bool:
        """Whether the sent text is the beginning of the answer's."""
        reasoning, content = texts_of(answer)
        return reasoning.startswith(self._reasoning) and content.startswith(self._content)


def _end(whole: str, sent: str) -> str:
    return whole[len(sent) :] if whole.startswith(sent) else ""


def texts_of(answer: CallAnswered) -> tuple[str, str]:
    """Reasoning and content of an answer, empty where it has none."""
    return answer.message.get("reasoning_content") or "", answer.message.get("content") or ""


log = structlog.get_logger()

FIRST_LOOK_SECONDS = 1.0
LONGEST_LOOK_SECONDS = 8.0
"""Longest time between two looks of a waiter: the delay of an answer whose hint was lost."""
_FRESH_SECONDS = 0.25
"""How long a position read for one waiter holds for the others."""


@dataclass(eq=False, slots=True)
class Waiter:
    """One call that waits for its answer."""

    event: CallRequested
    progress: AnswerProgress
    hinted: asyncio.Future[CallAnswered] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Answers:
    """All calls of this process that wait. ``inbox``: the subject of their hints."""

    def __init__(self, bus: Bus, journal: Journal) -> None:
        self._bus, self._journal = bus, journal
        self.inbox = bus.inbox()
        self._waiters: dict[str, Waiter] = {}
        self._unsubscribe: Callable[[], Awaitable[None]] | None = None
        self._newest = NewestAnswer(bus)

    async def open(self) -> None:
        """Listen for hints."""
        self._unsubscribe = await self._bus.on_hint(self.inbox, self._on_hint)

    async def close(self) -> None:
        """Stop listening."""
        if self._unsubscribe is not None:
            await self._unsubscribe()

    def expect(self, event: CallRequested, progress: AnswerProgress) -> Waiter:
        """Accept hints for a call. Before it is published, so that none is missed; ``forget`` ends it."""
        waiter = self._waiters[event.call] = Waiter(event, progress)
        return waiter

    def forget(self, waiter: Waiter) -> None:
        """Accept no more hints for it."""
        del self._waiters[waiter.event.call]

    async def answer(self, waiter: Waiter, asked_at: int) -> CallAnswered:
        """Wait for the answer. ``asked_at``: sequence of its call in the journal."""
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
        """The answer if it is stored, and the sequence up to which the journal is known not to hold it."""
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
            hint = decode(self.inbox, payload)
        except SeamlessFlowError as wrong:
            log.warning("hint.malformed", reason=str(wrong))
            return
        if not isinstance(hint, CallAnswered | AnswerDelta) or hint.call not in self._waiters:
            return
        waiter = self._waiters[hint.call]
        if isinstance(hint, AnswerDelta):
            waiter.progress.add(hint)
        elif not waiter.hinted.done():
            waiter.hinted.set_result(hint)


class NewestAnswer:
    """The sequence of the newest answer in a run's journal, read at most every ``_FRESH_SECONDS`` for all waiters."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._turn = asyncio.Lock()
        self._known: dict[str, tuple[float, int]] = {}

    async def answer(self, run: str) -> int:
        """Its sequence; 0: the run has no answer yet. Raises Unavailable."""
        async with self._turn:
            read_at, seq = self._known.get(run, (-_FRESH_SECONDS, 0))
            now = time.monotonic()
            if now - read_at >= _FRESH_SECONDS:
                record = await self._bus.last(journal_stream(run), subject_filter(CallAnswered, run=run))
                seq = 0 if record is None else record.seq
                self._known = {run: (now, seq)}
            return seq
