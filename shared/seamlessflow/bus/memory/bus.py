"""The bus in one process: a real, small implementation of the same promises, without a server and without a disk.

For tests of services, and for whoever wants to read what the bus promises without reading JetStream. Several clients
share one ``MemoryServer``. It differs on purpose in one way: a subject that no stream takes raises Unavailable at once,
since no other process could make the stream meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog
from typing_extensions import override

from seamlessflow.bus.base import (
    Bus,
    ConsumerSpec,
    Handler,
    KeyValue,
    Message,
    Record,
    Stored,
    StreamSpec,
    Subscription,
    check_size,
    headers_of,
)
from seamlessflow.contracts.subjects import matches, overlaps
from seamlessflow.errors import BusClosed, ConfigError, Unavailable

from .queue import MemoryConsumer, MemoryDelivery, MemoryQueue, Taker
from .stream import MemoryBucket, MemoryLog

# What the clients of the in-process bus share: logs, queues, buckets, hints. Nothing survives it.


log = structlog.get_logger()

HintHandler = Callable[[bytes], Awaitable[None]]


class MemoryServer:
    """The state that all memory buses of a test share: logs, queues, buckets and hints."""

    def __init__(self) -> None:
        self.buckets: dict[str, MemoryBucket] = {}
        self._logs: dict[str, MemoryLog] = {}
        self._queues: dict[str, MemoryQueue] = {}
        self._takers: defaultdict[tuple[str, str], list[Taker]] = defaultdict(list)
        self._hints: list[tuple[str, asyncio.Queue[bytes]]] = []
        self._inboxes = 0

    def publish(self, message: Message) -> Stored:
        """Raises MessageTooLarge, SequenceMismatch, and Unavailable at once when no stream takes the subject."""
        check_size(message, headers_of(message))
        for name, stream in self._logs.items():
            if stream.takes(message.subject):
                stored, record = stream.append(message)
                if record is not None:
                    for queue in self._queues.values():
                        if queue.spec.source == name:
                            queue.offer(record)
                return stored
        raise Unavailable(f"no stream listens on {message.subject}; {message.message_id} is not stored")

    def log(self, name: str) -> MemoryLog:
        """Raises Unavailable when there is no such stream."""
        if name not in self._logs:
            raise Unavailable(f"stream {name} does not exist")
        return self._logs[name]

    def ensure_stream(self, spec: StreamSpec) -> None:
        """Make a log or queue; a queue begins with the messages its source has."""
        known = self._logs.get(spec.name) or self._queues.get(spec.name)
        if known is not None:
            if known.spec != spec:
                raise ConfigError(f"stream {spec.name} exists with another configuration; nothing was changed")
        elif spec.source is None:
            self._refuse_overlap(spec)
            self._logs[spec.name] = MemoryLog(spec)
        else:
            queue = self._queues[spec.name] = MemoryQueue(spec)
            if (source := self._logs.get(spec.source)) is not None:
                for record in source.between(1, source.tail, ()):
                    queue.offer(record)

    def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Make a consumer. Raises Unavailable without its queue."""
        if spec.stream not in self._queues:
            raise Unavailable(f"queue {spec.stream} does not exist")
        self._queues[spec.stream].add(spec, self._takers[spec.stream, spec.name])

    def consumer(self, stream: str, name: str) -> MemoryConsumer | None:
        """The consumer, or None."""
        queue = self._queues.get(stream)
        return queue.consumers.get(name) if queue is not None else None

    def delete_stream(self, name: str) -> None:
        """Delete a log or queue; idempotent."""
        self._logs.pop(name, None)
        self._queues.pop(name, None)

    def stream_names(self) -> list[str]:
        """All logs and queues by name."""
        return sorted([*self._logs, *self._queues])

    def stream_bytes(self, name: str) -> int:
        """Bytes of subjects and payloads stored."""
        if name in self._queues:
            return sum(len(each.payload) + len(each.subject) for each in self._queues[name].records.values())
        return self.log(name).stored_bytes

    def join(self, stream: str, consumer: str, taker: Taker) -> None:
        """Add a pull to a consumer."""
        self._takers[stream, consumer].append(taker)
        self.dispatch(stream, consumer)

    def part(self, stream: str, consumer: str, taker: Taker) -> None:
        """Remove a pull from a consumer; idempotent."""
        takers = self._takers[stream, consumer]
        if taker in takers:
            takers.remove(taker)

    def dispatch(self, stream: str, consumer: str) -> None:
        """Deliver waiting messages to pulls with room."""
        if (found := self.consumer(stream, consumer)) is not None:
            found.dispatch()

    def inbox(self) -> str:
        """A subject that was not given out before."""
        self._inboxes += 1
        return f"_INBOX.memory.{self._inboxes}"

    def hint(self, subject: str, payload: bytes) -> None:
        """Queue a payload for every matching subscriber."""
        for pattern, waiting in self._hints:
            if matches(pattern, subject):
                waiting.put_nowait(payload)

    def on_hint(self, subject: str, handler: HintHandler) -> Callable[[], Awaitable[None]]:
        """Subscribe; returns a function that unsubscribes."""
        waiting: asyncio.Queue[bytes] = asyncio.Queue()
        place = (subject, waiting)
        self._hints.append(place)

        async def hear() -> None:
            while True:
                payload = await waiting.get()
                try:
                    await handler(payload)
                except Exception:
                    log.exception("bus.hint_failed", subject=subject)

        task = asyncio.create_task(hear())

        async def stop() -> None:
            if place in self._hints:
                self._hints.remove(place)
            task.cancel()

        return stop

    def _refuse_overlap(self, spec: StreamSpec) -> None:
        for other in self._logs.values():
            if any(overlaps(mine, theirs) for mine in spec.subjects for theirs in other.spec.subjects):
                raise ConfigError(f"subjects of stream {spec.name} overlap those of {other.spec.name}")


FAILED_HANDLER_DELAY_SECONDS = 1.0


class MemoryBus(Bus):
    """A connection to a ``MemoryServer``, its own one by default."""

    def __init__(self, server: MemoryServer | None = None) -> None:
        self._shared = server or MemoryServer()
        self._closed = False
        self._subscriptions: list[MemorySubscription] = []
        self._hint_stops: list[Callable[[], Awaitable[None]]] = []

    @property
    @override
    def connected(self) -> bool:
        return not self._closed

    @override
    async def publish(self, message: Message) -> Stored:
        stored = self._server.publish(message)  # as on a real bus, it is on its way before others get their turn
        await asyncio.sleep(0)
        return stored

    @override
    async def consume(
        self, stream: str, consumer: str, handler: Handler, *, credit: int, priority: int | None = None
    ) -> Subscription:
        subscription = MemorySubscription(self._server, stream, consumer, handler, credit=credit, priority=priority)
        self._subscriptions.append(subscription)
        return subscription

    @override
    async def read(
        self, stream: str, *, filters: Sequence[str] = (), start_seq: int = 1, follow: bool = False
    ) -> AsyncIterator[Record]:
        next_seq = start_seq
        while True:
            source = self._server.log(stream)
            tail = source.tail
            for record in source.between(next_seq, tail, filters):
                yield record
            next_seq = max(next_seq, tail + 1)
            if not follow:
                return
            await source.beyond(next_seq - 1)

    @override
    async def last(self, stream: str, subject: str) -> Record | None:
        return self._server.log(stream).last(subject)

    @override
    async def first(self, stream: str, subject: str) -> Record | None:
        return self._server.log(stream).first(subject)

    @override
    async def kv(self, bucket: str) -> KeyValue:
        return self._server.buckets.setdefault(bucket, MemoryBucket(bucket))

    @override
    async def ensure_stream(self, spec: StreamSpec) -> None:
        self._server.ensure_stream(spec)

    @override
    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        self._server.ensure_consumer(spec)

    @override
    async def delete_stream(self, name: str) -> None:
        self._server.delete_stream(name)

    @override
    async def stream_names(self) -> list[str]:
        return self._server.stream_names()

    @override
    async def stream_bytes(self, name: str) -> int:
        return self._server.stream_bytes(name)

    @override
    async def pending(self, stream: str, consumer: str) -> int:
        found = self._server.consumer(stream, consumer)
        if found is None:
            raise Unavailable(f"consumer {consumer} of {stream} does not exist")
        return found.pending

    @override
    def inbox(self) -> str:
        return self._server.inbox()

    @override
    async def hint(self, subject: str, payload: bytes) -> None:
        self._server.hint(subject, payload)

    @override
    async def on_hint(self, subject: str, handler: HintHandler) -> Callable[[], Awaitable[None]]:
        stop = self._server.on_hint(subject, handler)
        self._hint_stops.append(stop)
        return stop

    async def abort(self) -> None:
        """Go away as a killed process would: what was delivered comes again after ack_wait."""
        await self.close()

    @override
    async def close(self) -> None:
        self._closed = True
        for subscription in self._subscriptions:
            subscription.abandon()
        for stop in self._hint_stops:
            await stop()

    @property
    def _server(self) -> MemoryServer:
        if self._closed:
            raise BusClosed("this memory bus was closed")
        return self._shared


class MemorySubscription(Subscription):
    """A taker of deliveries (see memory_queue) that runs its handler on each, at most ``credit`` at a time."""

    def __init__(
        self, server: MemoryServer, stream: str, consumer: str, handler: Handler, *, credit: int, priority: int | None
    ) -> None:
        self.priority = priority or 0
        self._server = server
        self._where = (stream, consumer)
        self._handler = handler
        self._credit = credit
        self._running: set[asyncio.Task[None]] = set()
        server.join(stream, consumer, self)

    @property
    def has_room(self) -> bool:
        """Whether fewer handlers run than the credit allows."""
        return len(self._running) < self._credit

    def take(self, delivery: MemoryDelivery) -> None:
        """Run the handler in a task."""
        task = asyncio.create_task(self._handle(delivery))
        self._running.add(task)
        task.add_done_callback(self._on_handled)

    @override
    def set_credit(self, credit: int) -> None:
        self._credit = credit
        self._server.dispatch(*self._where)

    @override
    async def leave(self) -> None:
        self._server.part(*self._where, self)
        await asyncio.gather(*self._running, return_exceptions=True)

    def abandon(self) -> None:
        """End like a killed process: handlers are cancelled, deliveries stay open."""
        self._server.part(*self._where, self)
        for task in self._running:
            task.cancel()

    async def _handle(self, delivery: MemoryDelivery) -> None:
        try:
            await self._handler(delivery)
        except Exception:
            log.exception("bus.handler_failed", subject=delivery.subject, num_delivered=delivery.num_delivered)
            await delivery.nak(FAILED_HANDLER_DELAY_SECONDS)

    def _on_handled(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._server.dispatch(*self._where)
