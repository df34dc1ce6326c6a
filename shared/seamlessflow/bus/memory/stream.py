"""A stream in memory: records in order, remembered ids, the fence, and news for those who follow."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from typing_extensions import override

from seamlessflow.bus.base import Entry, KeyValue, Message, Record, Stored, StreamSpec, checked_key, checked_ttl, headers_of
from seamlessflow.contracts.subjects import matches
from seamlessflow.errors import SequenceMismatch


class MemoryLog:
    """A journal in memory: fenced appends, ids remembered for the window."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self._records: list[Record] = []
        self._seen: dict[str, tuple[int, float]] = {}
        self._news = asyncio.Event()

    @property
    def tail(self) -> int:
        """Sequence of the newest record; 0: there is none."""
        return self._records[-1].seq if self._records else 0

    @property
    def stored_bytes(self) -> int:
        """Bytes of subjects and payloads."""
        return sum(len(each.payload) + len(each.subject) for each in self._records)

    def takes(self, subject: str) -> bool:
        """Whether the subject is one of this stream."""
        return any(matches(pattern, subject) for pattern in self.spec.subjects)

    def append(self, message: Message) -> tuple[Stored, Record | None]:
        """Store, unless another message was first (SequenceMismatch) or the id is known (then no record).

        The expectation comes before the id, as on a server whose stream has one replica.
        """
        if message.expected_last_seq is not None and (mine := self._fenced(message, message.expected_last_seq)):
            return Stored(mine.seq, duplicate=True), None
        now = time.monotonic()
        seq, seen_at = self._seen.get(message.message_id, (0, float("-inf")))
        if now - seen_at < self.spec.duplicate_window_seconds:
            return Stored(seq, duplicate=True), None
        record = Record(message.subject, message.payload, headers_of(message), self.tail + 1, time.time())
        self._records.append(record)
        self._seen[message.message_id] = (record.seq, now)
        self._news.set()
        self._news = asyncio.Event()
        return Stored(record.seq), record

    def load(self, records: Iterable[Record]) -> None:
        """Take in what another server stored, as it is: sequences (gaps stay gaps), times and headers.

        Ids are not remembered: the records count as older than the de-duplication window. Queues get what is loaded before
        they are made. Raises ValueError for a sequence that is not above the one before.
        """
        for record in records:
            if record.seq <= self.tail:
                raise ValueError(f"stream {self.spec.name}: record {record.seq} cannot follow record {self.tail}")
            self._records.append(record)

    def between(self, start_seq: int, tail: int, filters: Sequence[str]) -> Iterator[Record]:
        """Records with start_seq <= seq <= tail that fall under some filter; no filter: all."""
        first, end = bisect_left(self._records, start_seq, key=_seq_of), bisect_right(self._records, tail, key=_seq_of)
        for record in self._records[first:end]:
            if not filters or any(matches(pattern, record.subject) for pattern in filters):
                yield record

    def last(self, pattern: str) -> Record | None:
        """The last record that matches, or None."""
        return next((each for each in reversed(self._records) if matches(pattern, each.subject)), None)

    def first(self, pattern: str, start_seq: int = 1) -> Record | None:
        """The first record from ``start_seq`` that matches, or None."""
        return next(self.between(start_seq, self.tail, (pattern,)), None)

    async def beyond(self, seq: int) -> None:
        """Returns when something is stored after ``seq``."""
        while self.tail <= seq:
            await self._news.wait()

    def _fenced(self, message: Message, expected: int) -> Record | None:
        """None: the expectation holds. A record: our own copy stands in the way. Else raises SequenceMismatch."""
        compared = message.expected_subject or message.subject
        last = self.last(compared)
        if (last.seq if last else 0) == expected:
            return None
        rival = self.first(compared, expected + 1)
        if rival is not None and rival.message_id == message.message_id:
            return rival
        first = f"{rival.message_id} (sequence {rival.seq})" if rival else "nothing that is still stored"
        raise SequenceMismatch(
            f"{message.message_id} expected {expected} to be the last sequence of {compared}, but {first} came after "
            f"it (wrong last sequence: {last.seq if last else 0}); nothing was stored"
        )


def _seq_of(record: Record) -> int:
    return record.seq


# A bucket in memory. ``MemoryBucket`` is shared by the clients of one server; it is its own key-value client.


@dataclass(frozen=True, slots=True)
class _Value:
    entry: Entry
    ends_at: float


class MemoryBucket(KeyValue):
    """A bucket in memory, with revisions and times to live."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._values: dict[str, _Value] = {}
        self._revision = 0

    @override
    async def get(self, key: str) -> Entry | None:
        value = self._values.get(checked_key(self._name, key))
        return value.entry if value is not None and value.ends_at > time.monotonic() else None

    @override
    async def put(self, key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        ttl = checked_ttl(checked_key(self._name, key), ttl_seconds)
        self._revision += 1
        ends_at = float("inf") if ttl is None else time.monotonic() + ttl
        self._values[key] = _Value(Entry(key, value, self._revision), ends_at)
        return self._revision

    @override
    async def create(self, key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        return await self._put_over(0, key, value, ttl_seconds)

    @override
    async def update(self, key: str, value: bytes, revision: int, *, ttl_seconds: int | None = None) -> int:
        return await self._put_over(revision, key, value, ttl_seconds)

    @override
    async def delete(self, key: str) -> None:
        self._values.pop(checked_key(self._name, key), None)

    @override
    async def entries(self) -> list[Entry]:
        live = (value for value in self._values.values() if value.ends_at > time.monotonic())
        return [value.entry for value in sorted(live, key=lambda each: each.entry.revision)]

    async def _put_over(self, revision: int, key: str, value: bytes, ttl_seconds: int | None) -> int:
        held = await self.get(key)
        held_revision = held.revision if held is not None else 0
        if held_revision != revision:
            raise SequenceMismatch(f"{self._name}/{key} is at revision {held_revision}, not {revision}; nothing changed")
        return await self.put(key, value, ttl_seconds=ttl_seconds)
