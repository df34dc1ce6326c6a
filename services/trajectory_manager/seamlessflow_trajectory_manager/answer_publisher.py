"""Saying answers: stored first, then hinted to the gateway that waits; also when the event behind one is dead-lettered.

Their text is hinted before, as it is sampled, where somebody reads along.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from seamlessflow.bus.base import Bus, Delivery, Stored
from seamlessflow.codec import encode
from seamlessflow.contracts import AnswerDelta, CallAnswered, Event, Service
from seamlessflow.errors import BadInput, SeamlessFlowError
from seamlessflow.runtime import EventHandlers, Journal
from seamlessflow.store.large_payloads import Store

from .trajectory.call_answers import instead_of_unreadable

log = structlog.get_logger()


class AnsweringSpeaker(Journal):
    """A journal that hints each answer once it is in the journal, also when it was there already."""

    def __init__(
        self, bus: Bus, store: Store, reply_of: Callable[[str, str], str], on_answer: Callable[[CallAnswered], None]
    ) -> None:
        """``reply_of(episode, call)``: the inbox of the waiting gateway, or an empty string. ``on_answer``: told of each."""
        super().__init__(bus, store)
        self._hint, self._reply_of, self._on_answer = bus.hint, reply_of, on_answer

    async def publish(self, event: Event) -> Stored | None:
        stored = await super().publish(event)
        if isinstance(event, CallAnswered):
            self._on_answer(event)
            await self._hint_answer(event, is_ours=stored is not None and not stored.duplicate)
        return stored

    async def hint_delta(self, delta: AnswerDelta, reply: str) -> None:
        """Text of an answer that is not there yet, of tokens that are stored. May be lost; then the answer brings it."""
        try:
            await self._hint(reply, encode(delta))
        except SeamlessFlowError as wrong:
            log.warning("delta.not_hinted", episode=delta.episode, call=delta.call, reason=str(wrong))

    async def _hint_answer(self, answer: CallAnswered, *, is_ours: bool) -> None:
        reply = self._reply_of(answer.episode, answer.call)
        if not reply:
            return
        try:
            # What is stored counts: an earlier answer may differ from the one we would give now.
            stored = answer if is_ours else await self.first(CallAnswered, answer.run, episode=answer.episode, call=answer.call)
            if stored is not None:
                await self._hint(reply, encode(stored))
        except SeamlessFlowError as wrong:
            log.warning("answer.not_hinted", episode=answer.episode, call=answer.call, reason=str(wrong))


class AnsweringInbox(EventHandlers):
    """An inbox that leaves nobody waiting for what it buries."""

    def __init__(
        self, bus: Bus, journal: Journal, store: Store, service: Service, give_up: Callable[[Event], list[Event]]
    ) -> None:
        """``give_up(event)``: what is said instead of the consequences of an event that cannot be handled."""
        super().__init__(bus, journal, store, service)
        self._answers, self._give_up = journal, give_up

    async def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """What is said instead comes first: killed in between, the delivery comes again."""
        try:
            instead = self._give_up(await self.open(delivery))
        except BadInput:
            instead = [*instead_of_unreadable(delivery.subject)]
        await self._answers.publish_all(instead)
        await super().dead_letter(delivery, reason)
