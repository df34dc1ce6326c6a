"""Asking the trajectory-manager: one CallRequested, and its one CallAnswered however long it takes (see ``waiting``).

asked ──▶ said ──▶ answered
            └── its client left, and did not come back in time: CallAbandoned, answered with an error
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from seamlessflow.bus.base import Bus
from seamlessflow.contracts import CallAbandoned, CallAnswered, CallRequested
from seamlessflow.errors import Unavailable
from seamlessflow.runtime import Speaker

from .dialect import Asked
from .digests import Digests
from .progress import Progress
from .waiting import Answers

if TYPE_CHECKING:
    from .sessions import Session

log = structlog.get_logger()

RETRY_SECONDS = 1.0
ABANDON_SECONDS = 30.0
"""How long a client that went away may take to come back for its answer; retries of the usual clients come sooner."""
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
    progress: Progress = field(default_factory=Progress)
    was_delivered: bool = False
    """The whole answer was handed to a connection that was still open."""
    is_abandoned: bool = False
    """Its client did not come back in time: nothing more is sampled for it."""
    leaving: asyncio.Task[None] | None = None
    """Waits for its client to come back."""

    @property
    def has_lost_client(self) -> bool:
        return self.transport is None or self.transport.is_closing()


class CallDesk:
    """Makes calls of requests."""

    def __init__(self, bus: Bus, speaker: Speaker) -> None:
        self._speaker = speaker
        self._answers = Answers(bus, speaker)
        self._leaving: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen for hints."""
        await self._answers.open()

    async def close(self) -> None:
        for leaving in self._leaving:
            leaving.cancel()
        await self._answers.close()

    def start(self, session: Session, asked: Asked, body_digest: str, request: web.BaseRequest) -> Call:
        """Ask. The returned call's task ends with the answer, or is cancelled with its session."""
        event = self._requested(session, asked, number=len(session.calls))
        progress = Progress()
        task = asyncio.create_task(self._answered(session, event, progress), name=f"call {event.call}")
        call = Call(event.call, body_digest, task, request.transport, progress)
        session.calls.append(call)
        session.memory.note(call, asked, event.messages)
        session.time.call_asked()
        task.add_done_callback(lambda _: session.time.call_over())
        return call

    def client_left(self, session: Session, call: Call) -> None:
        """Its client is gone: unless it comes back within ``ABANDON_SECONDS``, sampling stops."""
        if call.leaving is not None:
            call.leaving.cancel()
        call.leaving = task = asyncio.create_task(self._abandon(session, call))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _abandon(self, session: Session, call: Call) -> None:
        await asyncio.sleep(ABANDON_SECONDS)
        if session.is_over or call.answer.done() or not call.has_lost_client:
            return
        call.is_abandoned = True  # first: from here on a repetition is a call of its own
        opened = session.opened
        log.info("call.abandoned", call=call.id, episode=opened.episode, waited_seconds=ABANDON_SECONDS)
        await self._say(CallAbandoned(run=opened.run, episode=opened.episode, call=call.id, shard=opened.shard))

    def _requested(self, session: Session, asked: Asked, *, number: int) -> CallRequested:
        opened = session.opened
        contents: dict[str, dict[str, Any]] = {}
        messages = tuple(_noted(session.digests, contents, message) for message in asked.messages)
        tools = None if asked.tools is None else _noted(session.digests, contents, {"tools": list(asked.tools)})
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
            stop=asked.stop,
            stream=asked.stream,
            logprobs=asked.logprobs,
            tool_choice=asked.tool_choice,
            min_weights_version=opened.min_weights_version,
            seed=call_seed(opened.seed, number),
            reply=self._answers.inbox,
        )

    async def _answered(self, session: Session, event: CallRequested, progress: Progress) -> CallAnswered:
        waiter = self._answers.expect(event, progress)
        try:
            asked_at = await self._say(event)
            # Only now: a concurrent call that left them out could otherwise come before this one in the journal.
            session.seen.update(event.unseen)
            return await self._answers.answer(waiter, asked_at)
        finally:
            self._answers.forget(waiter)

    async def _say(self, event: CallRequested | CallAbandoned) -> int:
        """Its sequence in the journal; what answers it has a higher one."""
        while True:
            try:
                stored = await self._speaker.say(event)
                return 0 if stored is None else stored.seq
            except Unavailable as wrong:
                log.warning("call.delayed", call=event.call, episode=event.episode, reason=str(wrong))
                await asyncio.sleep(RETRY_SECONDS)


def call_seed(episode_seed: int, number: int) -> int:
    """Seed of an episode's ``number``-th call: different for each, the same in a repetition."""
    return int.from_bytes(hashlib.sha256(f"{episode_seed}:{number}".encode()).digest()[:8]) >> (64 - _SEED_BITS)


def _noted(digests: Digests, contents: dict[str, dict[str, Any]], content: dict[str, Any]) -> str:
    key = digests.of(content)
    contents[key] = content
    return key
