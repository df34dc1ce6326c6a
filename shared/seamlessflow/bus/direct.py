"""Direct get: one stored message by stateless request, the read that every service is permitted to make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from seamlessflow.bus.base import Record
from seamlessflow.bus.patience import Patience
from seamlessflow.bus.wire import NO_RESPONDERS, Incoming, Wire
from seamlessflow.errors import Unavailable

Query = Mapping[str, int | str]
"""For example ``{"last_by_subj": "sf.r.>"}`` or ``{"seq": 7, "next_by_subj": ">"}`` (ADR-31 of NATS)."""

ANSWER_SECONDS = 2.0

_ADDED_BY_THE_SERVER = frozenset(
    {
        "Nats-Stream",
        "Nats-Subject",
        "Nats-Sequence",
        "Nats-Time-Stamp",
        "Nats-Num-Pending",
        "Nats-Last-Sequence",
        "Nats-UpTo-Sequence",
    }
)


def record_from(answer: Incoming) -> Record:
    """The stored message inside a direct-get answer, without the headers that the answer added."""
    added = answer.headers
    return Record(
        subject=added["Nats-Subject"],
        payload=answer.payload,
        headers={key: value for key, value in added.items() if key not in _ADDED_BY_THE_SERVER},
        seq=int(added["Nats-Sequence"]),
        time=datetime.fromisoformat(added["Nats-Time-Stamp"]).timestamp(),
    )


class DirectGet:
    """Single reads. ``patience_seconds``: how long a stream that nobody serves is asked for before Unavailable."""

    def __init__(self, wire: Wire, patience_seconds: float) -> None:
        self._wire = wire
        self._patience_seconds = patience_seconds

    async def get(self, stream: str, query: Query) -> Record | None:
        """The message, or None when there is none. Raises Unavailable, BusClosed."""
        patience, unserved = Patience(), Patience()
        while True:
            reconnects = self._wire.reconnects
            answer = await self._ask(stream, query)
            if answer is not None and answer.status is None:
                return record_from(answer)
            if answer is not None and answer.status == 404:
                return None
            if answer is None or self._wire.reconnects != reconnects:
                unserved.forget()
            self.give_up_after(unserved, stream)
            await patience.pause()

    async def serves(self, stream: str) -> bool:
        """Whether the stream answers direct gets right now; False while it is missing or being recovered."""
        silent = Patience()
        while (answer := await self._ask(stream, {"last_by_subj": ">"})) is None:
            self.give_up_after(silent, stream)
        return answer.status != NO_RESPONDERS

    async def tail(self, stream: str) -> int:
        """Sequence of the last stored message; 0 when there is none."""
        last = await self.get(stream, {"last_by_subj": ">"})
        return last.seq if last is not None else 0

    def give_up_after(self, unserved: Patience, stream: str) -> None:
        """Raises Unavailable when nobody has served the stream for the whole of our patience."""
        if unserved.seconds > self._patience_seconds:
            raise Unavailable(f"stream {stream} has not answered for {self._patience_seconds:g} s. Does it exist?")

    async def _ask(self, stream: str, query: Query) -> Incoming | None:
        """None: no answer in time."""
        subject = f"$JS.API.DIRECT.GET.{stream}"
        try:
            return await self._wire.request(subject, json.dumps(query).encode(), timeout_seconds=ANSWER_SECONDS)
        except TimeoutError:
            return None
