"""What the clients of the in-process bus share: logs, queues, buckets, hints. Nothing survives it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

import structlog

from seamlessflow.bus.base import ConsumerSpec, Message, Stored, StreamSpec
from seamlessflow.bus.memory_kv import MemoryBucket
from seamlessflow.bus.memory_log import MemoryLog
from seamlessflow.bus.memory_queue import MemoryConsumer, MemoryQueue, Taker
from seamlessflow.bus.messages import check_size, headers_of
from seamlessflow.bus.subjects import matches, overlaps
from seamlessflow.errors import ConfigError, Unavailable

log = structlog.get_logger()

HintHandler = Callable[[bytes], Awaitable[None]]


class MemoryServer:
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
        if spec.stream not in self._queues:
            raise Unavailable(f"queue {spec.stream} does not exist")
        self._queues[spec.stream].add(spec, self._takers[spec.stream, spec.name])

    def consumer(self, stream: str, name: str) -> MemoryConsumer | None:
        queue = self._queues.get(stream)
        return queue.consumers.get(name) if queue is not None else None

    def delete_stream(self, name: str) -> None:
        self._logs.pop(name, None)
        self._queues.pop(name, None)

    def stream_names(self) -> list[str]:
        return sorted([*self._logs, *self._queues])

    def stream_bytes(self, name: str) -> int:
        if name in self._queues:
            return sum(len(each.payload) + len(each.subject) for each in self._queues[name].records.values())
        return self.log(name).stored_bytes

    def join(self, stream: str, consumer: str, taker: Taker) -> None:
        self._takers[stream, consumer].append(taker)
        self.dispatch(stream, consumer)

    def part(self, stream: str, consumer: str, taker: Taker) -> None:
        takers = self._takers[stream, consumer]
        if taker in takers:
            takers.remove(taker)

    def dispatch(self, stream: str, consumer: str) -> None:
        if (found := self.consumer(stream, consumer)) is not None:
            found.dispatch()

    def inbox(self) -> str:
        self._inboxes += 1
        return f"_INBOX.memory.{self._inboxes}"

    def hint(self, subject: str, payload: bytes) -> None:
        for pattern, waiting in self._hints:
            if matches(pattern, subject):
                waiting.put_nowait(payload)

    def on_hint(self, subject: str, handler: HintHandler) -> Callable[[], Awaitable[None]]:
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
