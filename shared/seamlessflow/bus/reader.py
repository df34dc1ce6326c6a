"""Reading a stream in order: direct-get batches, no consumer, no permission to create one.

Each request names its first sequence, so a server restart costs one repeated request.
Following asks "what is last?" every 0.1 s, every 0.25 s while nothing comes, and reads what is new in one batch. That costs
four answers a second, and in exchange there is no subscription that could be lost without a sign.
A stream that is deleted and made again under its name while it is followed is not noticed: runs do not reuse names.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType

from seamlessflow.errors import Unavailable

from .backoff import Patience
from .base import Record
from .connection import NO_RESPONDERS, Incoming, Wire

# Direct get: one stored message by stateless request, the read that every service is permitted to make.


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
    """Single reads. ``patience_seconds``: how long to ask for a stream without a server before Unavailable."""

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
        """Raises Unavailable when no server had the stream for ``patience_seconds``."""
        if unserved.seconds > self._patience_seconds:
            raise Unavailable(f"stream {stream} has not answered for {self._patience_seconds:g} s. Does it exist?")

    async def _ask(self, stream: str, query: Query) -> Incoming | None:
        """None: no answer in time."""
        subject = f"$JS.API.DIRECT.GET.{stream}"
        try:
            return await self._wire.request(subject, json.dumps(query).encode(), timeout_seconds=ANSWER_SECONDS)
        except TimeoutError:
            return None


# Batched direct get: many stored messages for one request, in order, with gaps noticed.
#
# Every request has a reply token of its own, so an answer that comes after its request was given up cannot be taken for
# another's. Inside a batch each message names its predecessor (``Nats-Last-Sequence``); a break of that chain or silence
# ends the batch early, and the caller goes on from the last good record.


BATCH_MESSAGES = 512
BATCH_BYTES = 4 << 20


@dataclass(slots=True)
class Batch:
    """``complete``: nothing matched beyond the last record when it was answered. ``unserved``: no such stream now."""

    records: list[Record] = field(default_factory=list)
    complete: bool = False
    unserved: bool = False


class Batches:
    """Asks for one batch at a time; an async context manager around its inbox."""

    def __init__(self, wire: Wire, stream: str) -> None:
        self._wire = wire
        self._subject = f"$JS.API.DIRECT.GET.{stream}"
        self._inbox = wire.inbox()
        self._request = 0
        self._batch = Batch()
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Batches:
        self._stop = await self._wire.listen(f"{self._inbox}.*", self._on_answer)
        self._stop_hearing_of_loss = self._wire.when_lost(lambda: self._ended.set())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_hearing_of_loss()
        await self._stop()

    async def fetch(self, pattern: str, start_seq: int) -> Batch:
        """Messages under ``pattern`` from ``start_seq`` on, at most one batch; possibly fewer than there are."""
        await self._wire.until_connected()
        self._request += 1
        self._batch, self._ended = Batch(), asyncio.Event()
        query = {"batch": BATCH_MESSAGES, "max_bytes": BATCH_BYTES, "seq": start_seq, "next_by_subj": pattern}
        try:
            await self._wire.send(self._subject, json.dumps(query).encode(), reply=f"{self._inbox}.{self._request}")
            # Not wait_for: before Python 3.12 it swallows a cancellation that meets the event.
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            pass  # what has come so far is good; the caller asks again
        self._request += 1
        return self._batch

    async def _on_answer(self, answer: Incoming) -> None:
        if answer.subject.rpartition(".")[2] != str(self._request) or self._ended.is_set():
            return
        if answer.status is not None:
            self._batch.complete = answer.status == 404 or answer.headers.get("Nats-Num-Pending") == "0"
            self._batch.unserved = answer.status == NO_RESPONDERS
            self._ended.set()
        elif int(answer.headers["Nats-Last-Sequence"]) != self._last_seq:
            self._ended.set()
        else:
            self._batch.records.append(record_from(answer))

    @property
    def _last_seq(self) -> int:
        return self._batch.records[-1].seq if self._batch.records else 0


FIRST_LOOK_SECONDS = 0.1
LONGEST_LOOK_SECONDS = 0.25


class Reader:
    """Reads a stream in order, by batched direct gets."""

    def __init__(self, wire: Wire, direct: DirectGet) -> None:
        self._wire = wire
        self._direct = direct

    async def read(
        self, stream: str, *, filters: Sequence[str] = (), start_seq: int = 1, follow: bool = False
    ) -> AsyncIterator[Record]:
        """See ``Bus.read``. Filters may overlap; each message comes once."""
        next_seq = start_seq
        idle = _idle()
        while True:
            tail = await self._direct.tail(stream)
            if tail >= next_seq:
                async for record in merged([self._between(stream, each, next_seq, tail) for each in filters or (">",)]):
                    yield record
                next_seq, idle = tail + 1, _idle()
            if not follow:
                return
            await idle.pause()

    def read_all(self, stream: str, pattern: str) -> AsyncIterator[Record]:
        """All there is under a pattern, and what is stored meanwhile: of a stream that keeps one message per subject,
        the newest of every subject that has one all the time. A subject may come twice, the newest last.
        """
        return self._between(stream, pattern, 1, sys.maxsize)

    async def _between(self, stream: str, pattern: str, next_seq: int, tail: int) -> AsyncIterator[Record]:
        """Messages under one pattern with next_seq <= seq <= tail."""
        patience, unserved = Patience(), Patience()
        async with Batches(self._wire, stream) as batches:
            while next_seq <= tail:
                batch = await batches.fetch(pattern, next_seq)
                for record in batch.records:
                    if record.seq > tail:
                        return
                    yield record
                    next_seq = record.seq + 1
                if batch.complete:
                    return
                if not batch.unserved:
                    unserved.forget()
                elif not batch.records:
                    self._direct.give_up_after(unserved, stream)
                    await patience.pause()


def _idle() -> Patience:
    """The pauses between looks that find nothing."""
    return Patience(first=FIRST_LOOK_SECONDS, longest=LONGEST_LOOK_SECONDS)


async def merged(sources: Sequence[AsyncIterator[Record]]) -> AsyncIterator[Record]:
    """Ordered sources as one ordered source; a sequence that several of them hold comes once."""
    if len(sources) == 1:
        async for record in sources[0]:
            yield record
        return
    heads: dict[int, Record] = {}
    behind = list(range(len(sources)))
    last_seq = 0
    while True:
        for index in behind:
            async for record in sources[index]:
                heads[index] = record
                break
        if not heads:
            return
        index = min(heads, key=lambda each: heads[each].seq)
        record = heads.pop(index)
        behind = [index]
        if record.seq > last_seq:
            last_seq = record.seq
            yield record
