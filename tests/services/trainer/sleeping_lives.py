"""A process of which each call to the bus or the store is a point where it can be delayed, put to sleep or killed. Not a test.

    call ──▶ point ──▶ it takes effect ──▶ point ──▶ its answer
               └ asleep: until woken      └ dead: there is no answer, and nothing else of this process takes effect either

The bus and the store are memory that all lives share; only the way there is a life's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from seamlessflow.bus.base import Delivery, Entry, Handler, KeyValue, Message, Record, Stored, Subscription
from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.errors import SequenceMismatch, Unavailable
from seamlessflow.store.large_payloads import Store
from tests.services.trainer.virtual_time import wait_inline


class Fault(Enum):
    """What happens to a life at one of its points."""

    STOPPED = "the process stands still"
    HANGS = "this one call hangs"
    CUT_OFF = "the bus is away, the store is not"
    NO_STORE = "the store is away, the bus is not"
    LEFT_BEHIND = "the next change to the store is given up after its time, and carried out later"
    KILLED = "killed"
    TERMINATED = "asked to leave"
    MOVED = "nothing, but its lease goes to the next one"


@dataclass(frozen=True, slots=True)
class Misfortune:
    """at_point: which of the life's points. wakes_after: so many calls of others later; None: once the others are done.
    moves_lease: the next life gets the lease because of it."""

    fault: Fault
    at_point: int
    wakes_after: int | None = None
    moves_lease: bool = True


class Surroundings(Protocol):
    """What lives share, and who is told of all they do."""

    def delay_seconds(self) -> float: ...
    def on_call(self, life: Life, call: str) -> None: ...
    def on_misfortune(self, life: Life, misfortune: Misfortune, call: str) -> None: ...
    def on_acknowledged(self, life: Life, subject: str) -> None: ...
    def later(self, life: Life, call: str, change: Callable[[], object], num_calls: int | None) -> None: ...


class Life:
    """One process. ``calls`` of it pass the gate here."""

    def __init__(self, name: str, around: Surroundings, misfortunes: Iterable[Misfortune] = ()) -> None:
        self.name, self._around = name, around
        self._misfortunes = {each.at_point: each for each in misfortunes}
        self.num_points = 0
        self.is_dead = False
        self._asleep_by: Fault | None = None
        self._awake = asyncio.Event()
        self._awake.set()
        self._hanging: list[asyncio.Event] = []
        self._left_behind: Misfortune | None = None
        self.struck = asyncio.Event()
        """Set once its lease should go to another life."""

    @property
    def is_asleep(self) -> bool:
        return self._asleep_by is not None

    def wake(self) -> None:
        self._asleep_by = None
        self._awake.set()
        for hanging in self._hanging:
            hanging.set()

    def spare(self) -> None:
        """No further misfortunes."""
        self._misfortunes.clear()

    def kill(self) -> None:
        """Nothing that it does from here on takes effect."""
        self.is_dead = True
        self.wake()

    def point(self, call: str, *, is_store: bool = False) -> Awaitable[None] | None:
        """What to wait for; None: nothing. Raises CancelledError in a dead process, whose code must not go on."""
        if self.is_dead:
            raise asyncio.CancelledError
        self.num_points += 1
        hangs = None
        if (misfortune := self._misfortunes.pop(self.num_points, None)) is not None:
            hangs = self._befall(misfortune, call)
        seconds = self._around.delay_seconds()
        if hangs is None and not seconds and not self._blocks(is_store) and not self.is_dead:
            return None
        return self._pass(seconds, hangs, is_store)

    def did(self, call: str) -> None:
        """A call took effect."""
        self._around.on_call(self, call)

    def acknowledged(self, subject: str) -> None:
        self._around.on_acknowledged(self, subject)

    def _befall(self, misfortune: Misfortune, call: str) -> asyncio.Event | None:
        hangs = None
        if misfortune.fault is Fault.HANGS:
            hangs = asyncio.Event()
            self._hanging.append(hangs)
        if misfortune.fault in (Fault.STOPPED, Fault.CUT_OFF, Fault.NO_STORE, Fault.HANGS):
            self._asleep_by = misfortune.fault
            self._awake.clear()
        if misfortune.fault is Fault.LEFT_BEHIND:
            self._left_behind = misfortune
        if misfortune.moves_lease:
            self.struck.set()
        self._around.on_misfortune(self, misfortune, call)
        return hangs

    def _blocks(self, is_store: bool) -> bool:
        by = self._asleep_by
        return by is Fault.STOPPED or (by is Fault.CUT_OFF and not is_store) or (by is Fault.NO_STORE and is_store)

    async def _pass(self, seconds: float, hangs: asyncio.Event | None, is_store: bool) -> None:
        if seconds and not self.is_dead:
            await asyncio.sleep(seconds)
        if hangs is not None:
            await hangs.wait()
        while self._blocks(is_store) and not self.is_dead:
            await self._awake.wait()
        if self.is_dead:
            raise asyncio.CancelledError

    async def call(self, call: str, effect: Awaitable[Any]) -> Any:
        """One call to the bus: point, effect, point. Others get their turn, as they do while a server answers."""
        try:
            if (waiting := self.point(call)) is not None:
                await waiting
        except BaseException:
            effect.close()  # type: ignore[attr-defined]
            raise
        try:
            return await effect
        except SequenceMismatch:
            call = f"{call} (refused)"
            raise
        finally:
            self.did(call)
            await (self.point(call) or asyncio.sleep(0))

    @contextmanager
    def blocking_call(self, call: str) -> Iterator[None]:
        """One call to the store, whose effect is the block."""
        self.wait_at(call)
        try:
            yield
        finally:
            self.did(call)
            self.wait_at(call)

    def change(self, call: str, change: Callable[[], object]) -> None:
        """A call that changes the store. Raises Unavailable where it was not done in time, and may be done at any time."""
        self.wait_at(call)
        left_behind, self._left_behind = self._left_behind, None
        if left_behind is not None:
            self._around.later(self, call, change, left_behind.wakes_after)
            raise Unavailable(f"{call}: no answer in time")
        change()
        self.did(call)
        self.wait_at(call)

    def wait_at(self, call: str) -> None:
        """A point inside blocking work."""
        if (waiting := self.point(call, is_store=True)) is not None:
            wait_inline(waiting)


class LifeBus(MemoryBus):
    """A life's connection."""

    def __init__(self, server: MemoryServer, life: Life) -> None:
        super().__init__(server)
        self._life = life

    async def publish(self, message: Message) -> Stored:
        return await self._life.call(f"publish {message.subject}", super().publish(message))

    async def last(self, stream: str, subject: str) -> Record | None:
        return await self._life.call(f"last {subject}", super().last(stream, subject))

    async def first(self, stream: str, subject: str) -> Record | None:
        return await self._life.call(f"first {subject}", super().first(stream, subject))

    async def read(
        self, stream: str, *, filters: Sequence[str] = (), start_seq: int = 1, follow: bool = False
    ) -> AsyncIterator[Record]:
        assert not follow
        for record in await self._life.call(f"read {','.join(filters)}", self._read(stream, filters, start_seq)):
            yield record

    async def _read(self, stream: str, filters: Sequence[str], start_seq: int) -> list[Record]:
        records = super().read(stream, filters=filters, start_seq=start_seq)
        return [record async for record in records]

    async def kv(self, bucket: str) -> KeyValue:
        return _LifeBucket(self._life, bucket, await super().kv(bucket))

    async def consume(
        self, stream: str, consumer: str, handler: Handler, *, credit: int, priority: int | None = None
    ) -> Subscription:
        async def on_delivery(delivery: Delivery) -> None:
            await handler(_LifeDelivery(self._life, delivery))

        effect = super().consume(stream, consumer, on_delivery, credit=credit, priority=priority)
        return await self._life.call(f"consume {stream}", effect)


class _LifeBucket:
    def __init__(self, life: Life, name: str, bucket: KeyValue) -> None:
        self._life, self._name, self._bucket = life, name, bucket

    async def get(self, key: str) -> Entry | None:
        return await self._life.call(f"get {self._name} {key}", self._bucket.get(key))

    async def put(self, key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        return await self._life.call(f"put {self._name} {key}", self._bucket.put(key, value, ttl_seconds=ttl_seconds))

    async def create(self, key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        return await self._life.call(f"create {self._name} {key}", self._bucket.create(key, value, ttl_seconds=ttl_seconds))

    async def update(self, key: str, value: bytes, revision: int, *, ttl_seconds: int | None = None) -> int:
        effect = self._bucket.update(key, value, revision, ttl_seconds=ttl_seconds)
        return await self._life.call(f"update {self._name} {key}", effect)

    async def delete(self, key: str) -> None:
        await self._life.call(f"delete {self._name} {key}", self._bucket.delete(key))

    async def entries(self) -> list[Entry]:
        return await self._life.call(f"entries {self._name}", self._bucket.entries())


class _LifeDelivery:
    def __init__(self, life: Life, delivery: Delivery) -> None:
        self._life, self._delivery = life, delivery
        self.subject, self.payload, self.headers = delivery.subject, delivery.payload, delivery.headers
        self.num_delivered, self.seq = delivery.num_delivered, delivery.seq

    async def ack(self) -> None:
        await self._life.call(f"ack {self.subject}", self._ack())

    async def _ack(self) -> None:
        self._life.acknowledged(self.subject)
        await self._delivery.ack()

    async def nak(self, delay_seconds: float = 0.0) -> None:
        await self._life.call(f"nak {self.subject}", self._delivery.nak(delay_seconds))

    async def term(self, reason: str) -> None:
        await self._life.call(f"term {self.subject}", self._delivery.term(reason))

    async def in_progress(self) -> None:
        await self._life.call(f"in_progress {self.subject}", self._delivery.in_progress())


class LifeStore(Store):
    """A life's way to the store: a bucket of whole objects, without folders."""

    def __init__(self, objects: dict[str, bytes], life: Life) -> None:
        self.url = "memory://store"
        self._objects, self._life = objects, life

    def write(self, path: str, content: bytes) -> None:
        self._life.change(f"write {path}", lambda: self._objects.update({path: content}))

    def write_chunks(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        content = bytearray()
        try:
            for chunk in chunks:
                if not content:
                    self._life.wait_at(f"open {path}")
                content += chunk
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot write {path}: {wrong}") from wrong
        self.write(path, bytes(content))

    def folders(self, path: str) -> list[str]:
        with self._life.blocking_call(f"list {path}"):
            names = {key[len(path) + 1 :].split("/", 1)[0] for key in self._objects if key.startswith(f"{path}/")}
            return sorted(names)

    def remove_folder(self, path: str) -> None:
        """As filesystems do it: list, then remove one after the other."""
        with self._life.blocking_call(f"list {path}"):
            found = [key for key in self._objects if key.startswith(f"{path}/")]
        for key in found:
            self.remove(key)

    def remove(self, path: str) -> None:
        self._life.change(f"remove {path}", lambda: self._objects.pop(path, None))

    def read(self, path: str) -> bytes:
        with self._life.blocking_call(f"read {path}"):
            return self._found(path)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        with self._life.blocking_call(f"read {path}"):
            return self._found(path)[start:end]

    def link(self, path: str, link: object, num_bytes: int) -> bool:
        return False

    def exists(self, path: str) -> bool:
        with self._life.blocking_call(f"exists {path}"):
            return path in self._objects

    def num_bytes(self, path: str) -> int | None:
        with self._life.blocking_call(f"size {path}"):
            content = self._objects.get(path)
            return None if content is None else len(content)

    def bytes_below(self, path: str) -> int | None:
        return None

    def _found(self, path: str) -> bytes:
        if path not in self._objects:
            raise FileNotFoundError(path)
        return self._objects[path]
