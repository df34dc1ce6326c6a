"""Saying answers: stored first, then hinted to the gateway that waits."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from seamlessflow.blobs import Store
from seamlessflow.bus.base import Bus, Stored
from seamlessflow.codec import encode
from seamlessflow.contracts import CallAnswered, Event
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.runtime import Speaker

log = structlog.get_logger()


class AnsweringSpeaker(Speaker):
    """A speaker that hints each answer once it is in the journal, also when it was there already."""

    def __init__(self, bus: Bus, store: Store, reply_of: Callable[[str, str], str]) -> None:
        """``reply_of(episode, call)``: the inbox of the waiting gateway, or an empty string."""
        super().__init__(bus, store)
        self._hint, self._reply_of = bus.hint, reply_of

    async def say(self, event: Event) -> Stored | None:
        stored = await super().say(event)
        if isinstance(event, CallAnswered):
            await self._hint_answer(event, is_ours=stored is not None and not stored.duplicate)
        return stored

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
