"""A work queue in memory: consumers, deliveries that expire, hand-backs, priorities.

A message is in exactly one place of its consumer: ready, open (delivered, clock running), or delayed (handed back for
later). Acknowledging removes it from the queue whatever its place: like JetStream's, a late acknowledgement counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from typing_extensions import override

from seamlessflow.bus.base import ConsumerSpec, Delivery, Record, StreamSpec
from seamlessflow.contracts.subjects import matches, overlaps
from seamlessflow.errors import ConfigError


class Taker(Protocol):
    """A holder of a standing pull."""

    @property
    def priority(self) -> int:
        """The lowest number is served first."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether it takes another delivery now."""
        ...

    def take(self, delivery: MemoryDelivery) -> None:
        """Accept a delivery; only called while there is room."""
        ...


class MemoryQueue:
    """A work queue: its records, until a consumer acknowledges them."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self.records: dict[int, Record] = {}
        self.consumers: dict[str, MemoryConsumer] = {}
        self._last_seq = 0

    def offer(self, record: Record) -> None:
        """Take a record of the source, if a filter lets it in."""
        filters = self.spec.source_filters
        if filters and not any(matches(pattern, record.subject) for pattern in filters):
            return
        self._last_seq += 1
        self.records[self._last_seq] = replace(record, seq=self._last_seq)
        for consumer in self.consumers.values():
            consumer.offer(self._last_seq)

    def add(self, spec: ConsumerSpec, takers: list[Taker]) -> None:
        """Raises ConfigError for another spec under the same name, and for filters that overlap another consumer's."""
        known = self.consumers.get(spec.name)
        if known is not None:
            if known.spec != spec:
                raise ConfigError(f"consumer {spec.name} of {spec.stream} exists with another configuration")
            return
        for other in self.consumers.values():
            if any(overlaps(mine, theirs) for mine in spec.filters for theirs in other.spec.filters):
                raise ConfigError(f"filters of consumer {spec.name} of {spec.stream} overlap those of {other.spec.name}")
        consumer = self.consumers[spec.name] = MemoryConsumer(self, spec, takers)
        for seq in self.records:
            consumer.offer(seq)


class MemoryConsumer:
    """Deliveries of one consumer with their acknowledgement clocks."""

    def __init__(self, queue: MemoryQueue, spec: ConsumerSpec, takers: list[Taker]) -> None:
        self.spec = spec
        self._queue = queue
        self._takers = takers
        self._ready: deque[int] = deque()
        self._clocks: dict[int, asyncio.TimerHandle] = {}
        self._num_delivered: dict[int, int] = {}

    @property
    def pending(self) -> int:
        """Records ready or delivered and open."""
        return len(self._ready) + len(self._clocks)

    def offer(self, seq: int) -> None:
        """Take a record that matches the filters."""
        subject = self._queue.records[seq].subject
        if not self.spec.filters or any(matches(pattern, subject) for pattern in self.spec.filters):
            self._ready.append(seq)
            self.dispatch()

    def dispatch(self) -> None:
        """Give ready messages to whoever has room, lowest priority number first, in turn among equals."""
        while self._ready and (free := [taker for taker in self._takers if taker.has_room]):
            taker = min(free, key=lambda each: each.priority) if self.spec.prioritized else free[0]
            self._takers.remove(taker)
            self._takers.append(taker)
            seq = self._ready.popleft()
            self._num_delivered[seq] = self._num_delivered.get(seq, 0) + 1
            self.restart_clock(seq)
            taker.take(MemoryDelivery(self, self._queue.records[seq], self._num_delivered[seq]))

    def restart_clock(self, seq: int) -> None:
        """Give an open delivery a whole acknowledgement time again."""
        self._after(self.spec.ack_wait_seconds, seq)

    def is_open(self, seq: int) -> bool:
        """Whether the record is delivered and not ended."""
        return seq in self._clocks

    def remove(self, seq: int) -> None:
        """Drop a record for good."""
        self._stop_clock(seq)
        self._num_delivered.pop(seq, None)
        if self._queue.records.pop(seq, None) is not None and seq in self._ready:
            self._ready.remove(seq)

    def hand_back(self, seq: int, delay_seconds: float) -> None:
        """Deliver an open record again after the delay."""
        if seq in self._clocks:
            self._after(delay_seconds, seq)

    def _after(self, seconds: float, seq: int) -> None:
        self._stop_clock(seq)
        self._clocks[seq] = asyncio.get_running_loop().call_later(seconds, self._again, seq)

    def _again(self, seq: int) -> None:
        self._clocks.pop(seq, None)
        self._ready.appendleft(seq)
        self.dispatch()

    def _stop_clock(self, seq: int) -> None:
        if (clock := self._clocks.pop(seq, None)) is not None:
            clock.cancel()


class MemoryDelivery(Delivery):
    """A delivery of a memory queue; answers to an ended one change nothing."""

    def __init__(self, consumer: MemoryConsumer, record: Record, num_delivered: int) -> None:
        self._consumer = consumer
        self._record = record
        self._num_delivered = num_delivered
        self.ended = False

    @property
    @override
    def subject(self) -> str:
        return self._record.subject

    @property
    @override
    def payload(self) -> bytes:
        return self._record.payload

    @property
    @override
    def headers(self) -> Mapping[str, str]:
        return self._record.headers

    @property
    @override
    def num_delivered(self) -> int:
        return self._num_delivered

    @property
    @override
    def seq(self) -> int:
        return self._record.seq

    @override
    async def ack(self) -> None:
        self._remove()

    @override
    async def term(self, reason: str) -> None:
        self._remove()

    @override
    async def nak(self, delay_seconds: float = 0.0) -> None:
        if not self.ended:
            self.ended = True
            self._consumer.hand_back(self.seq, delay_seconds)

    @override
    async def in_progress(self) -> None:
        if not self.ended and self._consumer.is_open(self.seq):
            self._consumer.restart_clock(self.seq)

    def _remove(self) -> None:
        if not self.ended:
            self.ended = True
            self._consumer.remove(self.seq)
