"""Publishing events to a run's journal and reading single ones back: the only way into the journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from seamlessflow.bus.base import Bus, Record, Stored
from seamlessflow.codec import decode, to_message
from seamlessflow.contracts import Event
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import SequenceMismatch
from seamlessflow.store.large_payloads import Store
from seamlessflow.telemetry import count

E = TypeVar("E", bound=Event)


class Journal:
    """Publishes events under ids of their own, so that a repeat changes nothing."""

    def __init__(self, bus: Bus, store: Store) -> None:
        self._bus = bus
        self._store = store

    async def publish(self, event: Event) -> Stored | None:
        """Store an event. None: it may exist only once and is stored already (perhaps by us)."""
        message = await self._store.detach(to_message(event))
        try:
            stored = await self._bus.publish(message)
        except SequenceMismatch:
            return None
        count("events_said", type(event).__name__)
        return stored

    async def publish_all(self, events: Iterable[Event]) -> None:
        """In order, one after the other: a reader never sees a consequence before its cause."""
        for event in events:
            await self.publish(event)

    async def append(self, event: Event, expected_last_seq: int) -> int:
        """Store an event as the next one of its subject; returns its sequence. Raises SequenceMismatch: the fence."""
        message = await self._store.detach(to_message(event))
        stored = await self._bus.publish(replace(message, expected_last_seq=expected_last_seq))
        count("events_said", type(event).__name__)
        return stored.seq

    async def open(self, record: Record) -> Event:
        """The event of a stored record."""
        payload = await self._store.attach(record.payload, dict(record.headers))
        return decode(record.subject, payload, record.headers)

    async def first(self, kind: type[E], run: str, **known: object) -> E | None:
        """The first stored event of a kind whose subject has the given fields, or None."""
        record = await self._bus.first(journal_stream(run), subject_filter(kind, run=run, **known))
        return None if record is None else await self._of_kind(kind, record)

    async def last(self, kind: type[E], run: str, **known: object) -> E | None:
        """The last stored event of a kind whose subject has the given fields, or None."""
        record = await self._bus.last(journal_stream(run), subject_filter(kind, run=run, **known))
        return None if record is None else await self._of_kind(kind, record)

    async def all_on(self, kind: type[Event], run: str, **known: object) -> list[Event]:
        """What is stored on the subjects of a kind that have the given fields, in journal order; other kinds may share them."""
        pattern = subject_filter(kind, run=run, **known)
        return [await self.open(record) async for record in self._bus.read(journal_stream(run), filters=(pattern,))]

    async def _of_kind(self, kind: type[E], record: Record) -> E | None:
        event = await self.open(record)
        return event if isinstance(event, kind) else None
