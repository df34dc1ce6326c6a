"""The real bus: one connection to a NATS server with JetStream. Joins the parts; each keeps its promises in a module.

    publishing   repeat until stored, fence          standing_pull, delivery   consume
    direct       one stored message                  batches, reading          many, in order, followed
    kv           current state                       admin                     streams and consumers
    wire         nats-py, and nothing else touches it; what is asked over it waits in ``awaited``

A connection that nats-py closes for good (it does so on most protocol errors) cannot be used again, and neither can
what hangs on it. Then ``on_closed`` runs, by default ``os._exit(70)``: an exit that no handler, lock or thread can hold
up, so that the supervisor restarts the process. What was in flight is delivered again.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog
from nats.aio.client import Client
from typing_extensions import override

from seamlessflow.redaction import without_password

from .admin import Admin
from .base import Bus, ConsumerSpec, Handler, KeyValue, Message, Record, Stored, StreamSpec, Subscription
from .connection import Incoming, Wire
from .consumer import StandingPull
from .kv import JetStreamKeyValue
from .publish import Publisher
from .reader import DirectGet, Reader

log = structlog.get_logger()

PATIENCE_SECONDS = 30.0
"""How long to wait for a stream without a server. A cluster that lost its leader takes about 7 s."""

CLOSED_EXIT_CODE = 70

_LOG_AGAIN_SECONDS = 5.0


async def connect(
    url: str,
    *,
    name: str,
    on_closed: Callable[[], None] | None = None,
    inbox_prefix: str = "_INBOX",
    nkey_seed: str | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> JetStreamBus:
    """Connects, waiting for a server that is not there yet; afterwards reconnects for ever.

    name: shown by the server's monitoring. nkey_seed: the secret of this service's user; None: no authentication.
    on_closed: called once when the connection is gone for good, not after our own ``close``. None: ``os._exit(70)``.
    """
    lifetime = _Lifetime(name, url, on_closed or (lambda: os._exit(CLOSED_EXIT_CODE)))
    client = Client()
    wire = Wire(client)
    await client.connect(
        url,
        name=name,
        inbox_prefix=inbox_prefix,
        nkeys_seed_str=nkey_seed,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.2,  # type: ignore[arg-type]  # annotated int, takes float
        ping_interval=5,
        max_outstanding_pings=2,
        pending_size=8 << 20,
        error_cb=lifetime.on_error,
        closed_cb=lifetime.on_closed,
        disconnected_cb=wire.on_lost,
    )
    return JetStreamBus(wire, lifetime, patience_seconds)


class _Lifetime:
    """Tells our own close from the server's, and new trouble from trouble already logged."""

    def __init__(self, name: str, url: str, on_closed_for_good: Callable[[], None]) -> None:
        self.ends_on_purpose = False
        self._log = log.bind(connection=name, nats=without_password(url))
        self._on_closed_for_good = on_closed_for_good
        self._logged = ("", 0.0)

    async def on_error(self, error: Exception) -> None:
        trouble = f"{type(error).__name__}: {error}"
        logged, at = self._logged
        if trouble != logged or time.monotonic() - at > _LOG_AGAIN_SECONDS:
            self._logged = (trouble, time.monotonic())
            self._log.warning("bus.trouble", error=trouble)

    async def on_closed(self) -> None:
        if not self.ends_on_purpose:
            self._log.error("bus.closed_for_good", last_trouble=self._logged[0])
            self._on_closed_for_good()


class JetStreamBus(Bus):
    """Made by ``connect``. Keeps the promises of ``base.Bus``."""

    def __init__(self, wire: Wire, lifetime: _Lifetime, patience_seconds: float) -> None:
        self._wire = wire
        self._lifetime = lifetime
        self._direct = DirectGet(wire, patience_seconds)
        self._publisher = Publisher(wire, self._direct, patience_seconds)
        self._reader = Reader(wire, self._direct)
        self._admin = Admin(wire, patience_seconds)
        self._pulls: set[StandingPull] = set()
        self._buckets: dict[str, tuple[int, JetStreamKeyValue]] = {}
        """By name, with the ``reconnects`` at which it was known to be there."""

    @property
    @override
    def connected(self) -> bool:
        return self._wire.connected

    @override
    async def publish(self, message: Message) -> Stored:
        return await self._publisher.publish(message)

    @override
    async def consume(
        self, stream: str, consumer: str, handler: Handler, *, credit: int, priority: int | None = None
    ) -> Subscription:
        pull = StandingPull(
            self._wire, stream, consumer, handler, credit=credit, priority=priority, on_left=self._pulls.discard
        )
        await pull.start()
        self._pulls.add(pull)
        return pull

    @override
    def read(
        self, stream: str, *, filters: Sequence[str] = (), start_seq: int = 1, follow: bool = False
    ) -> AsyncIterator[Record]:
        return self._reader.read(stream, filters=filters, start_seq=start_seq, follow=follow)

    @override
    async def last(self, stream: str, subject: str) -> Record | None:
        return await self._direct.get(stream, {"last_by_subj": subject})

    @override
    async def first(self, stream: str, subject: str) -> Record | None:
        return await self._direct.get(stream, {"seq": 1, "next_by_subj": subject})

    @override
    async def kv(self, bucket: str) -> KeyValue:
        reconnects = self._wire.reconnects
        known = self._buckets.get(bucket)
        if known is not None and known[0] == reconnects:
            return known[1]
        store = JetStreamKeyValue(bucket, self._publisher, self._direct, self._reader)
        await store.make_if_missing(self._admin)
        self._buckets[bucket] = (reconnects, store)
        return store

    @override
    async def ensure_stream(self, spec: StreamSpec) -> None:
        await self._admin.ensure_stream(spec)

    @override
    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        await self._admin.ensure_consumer(spec)

    @override
    async def delete_stream(self, name: str) -> None:
        await self._admin.delete_stream(name)

    @override
    async def stream_names(self) -> list[str]:
        return await self._admin.stream_names()

    @override
    async def stream_bytes(self, name: str) -> int:
        return await self._admin.stream_bytes(name)

    @override
    async def pending(self, stream: str, consumer: str) -> int:
        return await self._admin.pending(stream, consumer)

    @override
    def inbox(self) -> str:
        return self._wire.inbox()

    @override
    async def hint(self, subject: str, payload: bytes) -> None:
        if self._wire.connected:  # later would be too late for a hint
            await self._wire.send(subject, payload)

    @override
    async def on_hint(self, subject: str, handler: Callable[[bytes], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def on_message(incoming: Incoming) -> None:
            await handler(incoming.payload)

        return await self._wire.listen(subject, on_message)

    async def abort(self) -> None:
        """Go away as a killed process would: nothing handed back, nothing waited for. For tests of a peer's death."""
        self._lifetime.ends_on_purpose = True
        for pull in self._pulls:
            pull.abandon()
        await self._wire.close()

    @override
    async def close(self) -> None:
        """Flush and close. Leave subscriptions first: what one that was not left holds comes again after ack_wait."""
        self._lifetime.ends_on_purpose = True
        for pull in self._pulls:
            pull.abandon()
        await self._wire.flush(1.0)
        await self._wire.close()
