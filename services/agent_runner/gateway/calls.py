"""Asking the trajectory-manager: one CallRequested, and its one CallAnswered however long it takes.

The answer comes as a hint on this process's inbox, or is found in the journal, where every waiter looks each second. Most
wait for the same reason, such as a device that trains: so one look for all of them tells whether anything was answered at
all since, and only then each looks for its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from seamlessflow.bus.base import Bus
from seamlessflow.codec import decode
from seamlessflow.contracts import CallAnswered, CallRequested
from seamlessflow.contracts.addresses import subject_filter
from seamlessflow.contracts.streams import journal
from seamlessflow.errors import SeamlessFlowError, Unavailable
from seamlessflow.runtime import Speaker

from .dialect import Asked
from .digests import digest

if TYPE_CHECKING:
    from .sessions import Session

log = structlog.get_logger()

LOOK_SECONDS = 1.0
"""How often a waiter looks into the journal."""
_FRESH_SECONDS = 0.25
"""For how long what one waiter saw is good for the others."""
_SEED_BITS = 53
"""Seeds stay exact in every language's JSON."""


@dataclass(eq=False, slots=True)
class Call:
    """A call that is being answered; the task lives on when the client goes away."""

    id: str
    body_digest: str
    answer: asyncio.Task[CallAnswered]
    transport: asyncio.Transport | None
    """Of the client that waits for it now. Not its request, which would keep the whole body as long as the session lives."""
    was_delivered: bool = False
    """The whole answer was handed to a connection that was still open."""

    @property
    def has_lost_client(self) -> bool:
        return self.transport is None or self.transport.is_closing()


class CallDesk:
    """Makes calls of requests and dispatches their answers."""

    def __init__(self, bus: Bus, speaker: Speaker) -> None:
        self._bus, self._speaker = bus, speaker
        self._inbox = bus.inbox()
        self._waiting: dict[str, asyncio.Future[CallAnswered]] = {}
        self._unsubscribe: Callable[[], Awaitable[None]] | None = None
        self._newest = Newest(bus)

    async def open(self) -> None:
        """Listen for hints."""
        self._unsubscribe = await self._bus.on_hint(self._inbox, self._on_hint)

    async def close(self) -> None:
        if self._unsubscribe is not None:
            await self._unsubscribe()

    def start(self, session: Session, asked: Asked, body_digest: str, request: web.BaseRequest) -> Call:
        """Ask. The returned call's task ends with the answer, or is cancelled with its session."""
        event = self._requested(session, asked, number=len(session.calls))
        task = asyncio.create_task(self._answered(session, event), name=f"call {event.call}")
        call = Call(event.call, body_digest, task, request.transport)
        session.calls.append(call)
        session.memory.note(call, asked, event.messages)
        session.time.call_asked()
        task.add_done_callback(lambda _: session.time.call_over())
        return call

    def _requested(self, session: Session, asked: Asked, *, number: int) -> CallRequested:
        opened = session.opened
        contents: dict[str, dict[str, Any]] = {}
        messages = tuple(_noted(contents, message) for message in asked.messages)
        tools = None if asked.tools is None else _noted(contents, {"tools": list(asked.tools)})
        budget = min(opened.sampling.max_tokens, asked.max_tokens or opened.sampling.max_tokens)
        return CallRequested(
            run=opened.run,
            episode=opened.episode,
            call=f"c{secrets.token_hex(12)}",
            shard=opened.shard,
            bucket=opened.bucket,
            origin=opened.origin,
            tag=opened.tag,
            messages=messages,
            unseen={key: content for key, content in contents.items() if key not in session.seen},
            tools=tools,
            sampling=opened.sampling.model_copy(update={"max_tokens": budget}),
            tool_choice=asked.tool_choice,
            min_weights_version=opened.min_weights_version,
            seed=call_seed(opened.seed, number),
            reply=self._inbox,
        )

    async def _answered(self, session: Session, event: CallRequested) -> CallAnswered:
        hinted: asyncio.Future[CallAnswered] = asyncio.get_running_loop().create_future()
        self._waiting[event.call] = hinted
        try:
            looked_until = await self._say(event)
            # Only now: a concurrent call that left them out could otherwise come before this one in the journal.
            session.seen.update(event.unseen)
            while True:
                done, _ = await asyncio.wait({hinted}, timeout=LOOK_SECONDS)
                if done:
                    return hinted.result()
                answer, looked_until = await self._look(event, looked_until)
                if answer is not None:
                    return answer
        finally:
            del self._waiting[event.call]

    async def _say(self, event: CallRequested) -> int:
        """Its sequence in the journal; its answer has a higher one."""
        while True:
            try:
                stored = await self._speaker.say(event)
                return 0 if stored is None else stored.seq
            except Unavailable as wrong:
                log.warning("call.delayed", call=event.call, episode=event.episode, reason=str(wrong))
                await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, event: CallRequested, looked_until: int) -> tuple[CallAnswered | None, int]:
        """The answer if it is stored, and up to which sequence the journal is now known not to hold it."""
        try:
            newest = await self._newest.answer(event.run)
            if newest <= looked_until:
                return None, looked_until
            found = await self._speaker.first(CallAnswered, event.run, episode=event.episode, call=event.call)
            return found, newest
        except SeamlessFlowError as wrong:
            log.warning("answer.unreadable", call=event.call, episode=event.episode, reason=str(wrong))
            return None, looked_until

    async def _on_hint(self, payload: bytes) -> None:
        try:
            answer = decode(self._inbox, payload)
        except SeamlessFlowError as wrong:
            log.warning("hint.malformed", reason=str(wrong))
            return
        if isinstance(answer, CallAnswered):
            waiting = self._waiting.get(answer.call)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)


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
                record = await self._bus.last(journal(run), subject_filter(CallAnswered, run=run))
                seq = 0 if record is None else record.seq
                self._known = {run: (now, seq)}
            return seq


def call_seed(episode_seed: int, number: int) -> int:
    """Seed of an episode's ``number``-th call: different for each, the same in a repetition."""
    return int.from_bytes(hashlib.sha256(f"{episode_seed}:{number}".encode()).digest()[:8]) >> (64 - _SEED_BITS)


def _noted(contents: dict[str, dict[str, Any]], content: dict[str, Any]) -> str:
    key = digest(content)
    contents[key] = content
    return key
