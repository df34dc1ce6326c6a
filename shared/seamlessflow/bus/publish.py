"""Publish until stored: one message, one id, as many tries as it takes.

A time-out, a reconnect and a busy server are all answered by sending the same bytes again; the journal keeps the first
copy only. Three things end the loop otherwise: the message is refused for good (BadInput), another writer was first
(SequenceMismatch), or the subject had no listener for ``patience_seconds`` of being connected (Unavailable).
A full stream does not end it: waiting is the back-pressure, logged every ten seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import structlog

from seamlessflow.errors import BadInput, MalformedMessage, SequenceMismatch, Unavailable

from .backoff import Patience
from .base import Message, Stored, check_size, headers_of
from .connection import NO_RESPONDERS, Incoming, Wire
from .reader import DirectGet

log = structlog.get_logger()

ACKNOWLEDGEMENT_SECONDS = 2.0
"""How long one try waits for its PubAck. Too short only costs a repeat, which the server de-duplicates."""

_WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
_WORTH_REPEATING = frozenset({10158})  # the same id is being stored at this moment
_LOG_EVERY_SECONDS = 10.0


class Publisher:
    """Publishes messages and reads back whether a refused append was stored."""

    def __init__(self, wire: Wire, direct: DirectGet, patience_seconds: float) -> None:
        self._wire = wire
        self._direct = direct
        self._patience_seconds = patience_seconds

    async def publish(self, message: Message) -> Stored:
        """See ``Bus.publish``."""
        headers = headers_of(message)
        check_size(message, headers)
        patience, unheard, last_log = Patience(), Patience(), Patience()
        while True:
            reconnects = self._wire.reconnects
            answer = await self._try(message, headers)
            if self._wire.reconnects != reconnects:
                unheard.forget()
            if answer is not None and answer.status != NO_RESPONDERS:
                unheard.forget()
                stored = await self._outcome(message, answer)
                if stored is not None:
                    return stored
            elif answer is None:
                unheard.forget()
            elif unheard.seconds > self._patience_seconds:
                raise Unavailable(
                    f"no stream has listened on {message.subject} for {self._patience_seconds:g} s; "
                    f"{message.message_id} is not stored. Was the run's journal created?"
                )
            if last_log.seconds > _LOG_EVERY_SECONDS:
                last_log.forget()
                log.warning("bus.publish_waits", subject=message.subject, message_id=message.message_id)
            await patience.pause()

    async def _try(self, message: Message, headers: Mapping[str, str]) -> Incoming | None:
        try:
            return await self._wire.request(
                message.subject, message.payload, timeout_seconds=ACKNOWLEDGEMENT_SECONDS, headers=headers
            )
        except TimeoutError:
            return None

    async def _outcome(self, message: Message, answer: Incoming) -> Stored | None:
        """The server's answer; None: try again."""
        try:
            body = json.loads(answer.payload)
        except ValueError as error:
            raise MalformedMessage(f"{message.subject} was answered by something that is no stream") from error
        refusal = body.get("error")
        if refusal is None:
            return Stored(int(body["seq"]), bool(body.get("duplicate", False)))
        if refusal.get("err_code") in _WRONG_LAST_SEQUENCE:
            return await self._ours_or_mismatch(message, str(body.get("stream", "")), refusal["description"])
        if refusal["code"] >= 500 or refusal.get("err_code") in _WORTH_REPEATING:
            return None
        raise BadInput(f"{message.message_id} on {message.subject} was refused: {refusal['description']}")

    async def _ours_or_mismatch(self, message: Message, stream: str, refusal: str) -> Stored:
        """A refused append may be our own, stored before its acknowledgement got lost.

        Had it been stored, it would be the first message of the compared subject after the expected sequence, whoever
        wrote after it: so that one is read, not the last.
        """
        compared = message.expected_subject or message.subject
        expected = message.expected_last_seq or 0
        rival = await self._direct.get(stream, {"seq": expected + 1, "next_by_subj": compared})
        if rival is not None and rival.message_id == message.message_id:
            return Stored(rival.seq, duplicate=True)
        first = f"{rival.message_id or 'a message'} (sequence {rival.seq})" if rival else "nothing that is still stored"
        raise SequenceMismatch(
            f"{message.message_id} expected {expected} to be the last sequence of {compared}, but {first} came after "
            f"it ({refusal}); nothing was stored"
        )
