"""Calls to the trajectory-manager: one CallRequested, and its one CallAnswered however long it takes (see ``answer_wait``).

requested ──▶ published ──▶ answered
                  └── its clients left, and none came back in time: CallAbandoned, answered with an error
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from typing import TYPE_CHECKING, Any

import structlog

from seamlessflow.bus.base import Bus
from seamlessflow.contracts import CallAbandoned, CallAnswered, CallRequested
from seamlessflow.errors import Unavailable
from seamlessflow.runtime import Journal

from .answer_wait import Answers
from .dialects.base import ParsedRequest
from .sessions import Digests, GatewayCall

if TYPE_CHECKING:
    from .sessions import Session

log = structlog.get_logger()

RETRY_SECONDS = 1.0
ABANDON_SECONDS = 30.0
"""How long a lost client may take to come back for its answer; retries of the usual clients come sooner."""
_SEED_BITS = 53
"""Seeds stay exact in every language's JSON."""


class CallRequests:
    """Publishes a call for each request, and waits for its answer."""

    def __init__(self, bus: Bus, journal: Journal) -> None:
        self._journal = journal
        self._answers = Answers(bus, journal)
        self._leaving: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen for hints."""
        await self._answers.open()

    async def close(self) -> None:
        """Stop listening; clients that left are no longer waited for."""
        for leaving in self._leaving:
            leaving.cancel()
        await self._answers.close()

    def start(self, session: Session, asked: ParsedRequest, body_digest: bytes) -> GatewayCall:
        """Start a call. Its task ends with the answer, or is cancelled with its session."""
        event = self._requested(session, asked, number=len(session.calls))
        call = GatewayCall(event.call, body_digest)
        call.answer = task = asyncio.create_task(self._answered(session, event, call), name=f"call {event.call}")
        session.calls.append(call)
        session.previous_responses.note(event.call, asked, event.messages)
        session.time.call_asked()
        task.add_done_callback(lambda _: session.time.call_over())
        return call

    def client_left(self, session: Session, call: GatewayCall) -> None:
        """All its clients are gone: unless one comes back within ``ABANDON_SECONDS``, sampling stops."""
        if call.leaving is not None:
            call.leaving.cancel()
        call.leaving = task = asyncio.create_task(self._abandon(session, call))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _abandon(self, session: Session, call: GatewayCall) -> None:
        await asyncio.sleep(ABANDON_SECONDS)
        if session.is_over or call.is_answered or not call.has_lost_client:
            return
        call.is_abandoned = True  # first: from here on a repetition is a call of its own
        if call.is_published:
            await self._publish_abandoned(session, call)

    async def _publish_abandoned(self, session: Session, call: GatewayCall) -> None:
        opened = session.opened
        log.info("call.abandoned", call=call.id, episode=opened.episode, waited_seconds=ABANDON_SECONDS)
        await self._publish(CallAbandoned(run=opened.run, episode=opened.episode, call=call.id, shard=opened.shard))

    def _requested(self, session: Session, asked: ParsedRequest, *, number: int) -> CallRequested:
        opened = session.opened
        contents: dict[str, dict[str, Any]] = {}
        messages = tuple(_noted(session.digests, contents, message) for message in asked.messages)
        tools = None if asked.tools is None else _noted(session.digests, contents, {"tools": list(asked.tools)})
        budget = min(opened.sampling.max_tokens, asked.max_tokens or opened.sampling.max_tokens)
        return CallRequested(
            run=opened.run,
            episode=opened.episode,
            call=_new_id(),
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

    async def _answered(self, session: Session, event: CallRequested, call: GatewayCall) -> CallAnswered:
        assert call.progress is not None
        waiter = self._answers.expect(event, call.progress)
        try:
            if session.pin is not None:
                event = await session.pin.on(event)
            asked_at = await self._publish(event)
            call.is_published = True
            # Only after publishing: a concurrent call that left them out could otherwise come before this one in the journal.
            session.seen.update(event.unseen)
            if call.is_abandoned:  # abandoned while the journal was unavailable: CallAbandoned must come after CallRequested
                await self._publish_abandoned(session, call)
            answer = await self._answers.answer(waiter, asked_at)
        finally:
            self._answers.forget(waiter)
        session.previous_responses.answered(answer)
        session.sampled_tokens += 0 if answer.usage is None else answer.usage.completion_tokens
        return answer

    async def _publish(self, event: CallRequested | CallAbandoned) -> int:
        """Its sequence in the journal; its answer has a higher one."""
        while True:
            try:
                stored = await self._journal.publish(event)
                return 0 if stored is None else stored.seq
            except Unavailable as wrong:
                log.warning("call.delayed", call=event.call, episode=event.episode, reason=str(wrong))
                await asyncio.sleep(RETRY_SECONDS)


def call_seed(episode_seed: int, number: int) -> int:
    """Seed of an episode's ``number``-th call: different for each, the same in a repetition."""
    return int.from_bytes(hashlib.sha256(f"{episode_seed}:{number}".encode()).digest()[:8]) >> (64 - _SEED_BITS)


def _new_id() -> str:
    """Unguessable, and sorts by its time."""
    return f"c{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"


def _noted(digests: Digests, contents: dict[str, dict[str, Any]], content: dict[str, Any]) -> str:
    key = digests.of(content)
    contents[key] = content
    return key
