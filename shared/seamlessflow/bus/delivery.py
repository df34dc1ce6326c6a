"""One message handed to us by a real consumer, and the four things that can be said about it.

All four are fire and forget: a lost one means another delivery, which every handler tolerates anyway (JetStream
delivers at least once, and accepts a late acknowledgement of an earlier delivery). Waiting for the server to confirm
would halve the throughput and would still not be a fence. An acknowledgement, for which nobody waits, also lets others
travel with it (``Wire.send_soon``): it may reach the server a few milliseconds later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from seamlessflow.bus.wire import Incoming, Wire


class JetStreamDelivery:
    def __init__(self, wire: Wire, incoming: Incoming) -> None:
        self._wire = wire
        self._incoming = incoming
        self.ended = False
        """True once ack, nak or term was said; nothing is sent after that."""

    @property
    def subject(self) -> str:
        return self._incoming.subject

    @property
    def payload(self) -> bytes:
        return self._incoming.payload

    @property
    def headers(self) -> Mapping[str, str]:
        return self._incoming.headers

    @property
    def num_delivered(self) -> int:
        return int(self._field(0))

    @property
    def seq(self) -> int:
        return int(self._field(1))

    async def ack(self) -> None:
        if not self.ended:
            self.ended = True
            await self._wire.send_soon(self._incoming.reply, b"+ACK")

    async def nak(self, delay_seconds: float = 0.0) -> None:
        delay = b" " + json.dumps({"delay": int(delay_seconds * 1e9)}).encode() if delay_seconds > 0 else b""
        await self._end(b"-NAK" + delay)

    async def term(self, reason: str) -> None:
        await self._end(f"+TERM {reason}".encode())

    async def in_progress(self) -> None:
        if not self.ended:
            await self._say(b"+WPI")

    async def _end(self, verdict: bytes) -> None:
        if not self.ended:
            self.ended = True
            await self._say(verdict)

    async def _say(self, verdict: bytes) -> None:
        with suppress(TimeoutError):  # away for so long that the buffer is full: the message is delivered again
            await self._wire.send(self._incoming.reply, verdict)

    def _field(self, index: int) -> str:
        """The reply is ``$JS.ACK[.domain.account].stream.consumer.delivered.seq`` and more; old and new form differ."""
        tokens = self._incoming.reply.split(".")
        return tokens[(4 if len(tokens) == 9 else 6) + index]
