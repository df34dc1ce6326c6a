"""What a service may ask of the bus: the one seam between SeamlessFlow and JetStream.

Two adapters keep these promises and pass one test suite (tests/bus): ``jetstream`` (real) and ``memory`` (in process).

* **publish** repeats one message under one id until the server has stored it, so a caller never retries by itself.
  A message whose id the journal saw in the last ten minutes is stored once (``Stored.duplicate``).
* **append** is publish with an expected last sequence: the only fence there is. It raises ``SequenceMismatch`` and
  stores nothing when another writer was first. A lost acknowledgement is told apart by the message id (see below).
  The expectation is checked before the id: a message whose id is known is refused, too, once its expectation no longer
  holds. So a refusal of a message that compares another subject does not tell whether an earlier try stored it, and a
  late writer is never answered by the duplicate of its successor's message. While the expectation holds, a repeat
  is stored once as long as the journal knows the id, and a second time after that.
* **consume** keeps a standing pull open on a durable consumer for as long as the subscription lives, through server
  restarts. Every message is delivered at least once; several handlers run at a time, bounded by ``credit``.
* **leave** stops pulling, hands back what still arrives, and waits for running handlers; no message is stranded.
* **read** gives the stored messages of a stream in order; **last** one subject's last message.
* **kv** holds small current state with compare-and-set; it is re-read, never trusted to be watched.
* **hint** and **on_hint** are core NATS: fast, and allowed to be lost. Nothing may depend on one.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from seamlessflow.errors import BadInput, MessageTooLarge

MAX_PAYLOAD_BYTES = 1 << 20
"""Largest message, headers included; above it publish raises MessageTooLarge. The server's own limit is higher."""

ACK_WAIT_SECONDS = 10.0
"""A delivery without acknowledgement or progress ping for this long is delivered again, to any consumer."""

PROGRESS_SECONDS = 3.0
"""How often a holder of a delivery should call ``in_progress``."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message to store. ``expected_last_seq`` None: unconditional. 0: nothing may exist on ``expected_subject``."""

    subject: str
    payload: bytes
    message_id: str
    headers: Mapping[str, str] = field(default_factory=dict)
    expected_last_seq: int | None = None
    expected_subject: str | None = None
    """Subject (wildcards allowed) whose last sequence is compared. None: the message's own subject."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a message went. ``duplicate`` True: the id was known, ``seq`` is the first copy's."""

    seq: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A message read back from a stream."""

    subject: str
    payload: bytes
    headers: Mapping[str, str]
    seq: int
    time: float
    """Unix seconds at which the server stored it."""

    @property
    def message_id(self) -> str:
        """The publisher's id, or an empty string where the publisher gave none."""
        return self.headers.get("Nats-Msg-Id", "")


class Delivery(Protocol):
    """One message handed to us by a consumer; exactly one of ack, nak, term ends it."""

    @property
    def subject(self) -> str:
        """The subject it was published on."""
        ...

    @property
    def payload(self) -> bytes:
        """The body as stored."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers as stored, the message id among them."""
        ...

    @property
    def num_delivered(self) -> int:
        """1 on the first delivery; polite naks count too."""
        ...

    @property
    def seq(self) -> int:
        """Sequence in the queue the message was delivered from."""
        ...

    async def ack(self) -> None:
        """Handled: the queue drops the message."""
        ...

    async def nak(self, delay_seconds: float = 0.0) -> None:
        """Hand back; delivered again after the delay, to any consumer."""
        ...

    async def term(self, reason: str) -> None:
        """Never deliver again. Only after its dead letter is stored."""
        ...

    async def in_progress(self) -> None:
        """Restart the acknowledgement clock."""
        ...


Handler = Callable[[Delivery], Awaitable[None]]


class Subscription(Protocol):
    """A standing pull. While it lives, messages come."""

    def set_credit(self, credit: int) -> None:
        """How many deliveries may be unhandled at a time from now on; 0 pauses pulling without leaving."""
        ...

    async def leave(self) -> None:
        """Stop pulling, nak what still arrives, wait for running handlers, unsubscribe. Idempotent.

        An idle leave takes up to two seconds on a real server. Never wait for it in a handler: that waits for itself.
        """
        ...


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream to exist. ``source`` given: a work queue filled from that stream by filters, and by nothing else.

    source_filters: subject patterns that do not overlap; empty means everything.
    duplicate_window_seconds: how long a journal knows ids; a queue leaves duplicates to its journal.
    """

    name: str
    subjects: Sequence[str] = ()
    source: str | None = None
    source_filters: Sequence[str] = ()
    duplicate_window_seconds: float = 600.0
    max_bytes: int = -1


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A durable, explicit-ack, immutable pull consumer to exist on a work queue."""

    stream: str
    name: str
    filters: Sequence[str]
    ack_wait_seconds: float = ACK_WAIT_SECONDS
    prioritized: bool = False
    """True: pulls carry a priority and the lowest number is served first (JetStream priority group ``prioritized``)."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value and its revision (the token of the next compare-and-set)."""

    key: str
    value: bytes
    revision: int


class KeyValue(Protocol):
    """A bucket of small current state. Values live until replaced, deleted, or ``ttl_seconds`` passed."""

    async def get(self, key: str) -> Entry | None:
        """The live entry of a key, or None."""
        ...

    async def put(self, key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        """Store whatever was there before; returns the new revision."""
        ...

    async def create(self, key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        """Raises SequenceMismatch when the key exists."""
        ...

    async def update(self, key: str, value: bytes, revision: int, *, ttl_seconds: int | None = None) -> int:
        """Raises SequenceMismatch when ``revision`` is no longer the key's."""
        ...

    async def delete(self, key: str) -> None:
        """Remove the entry; idempotent."""
        ...

    async def entries(self) -> list[Entry]:
        """All live keys with their values, read now."""
        ...


class Bus(Protocol):
    """See the module docstring for the promises."""

    @property
    def connected(self) -> bool:
        """Whether the server is there now; while it is not, everything that needs it waits."""
        ...

    async def publish(self, message: Message) -> Stored:
        """Store; repeats under the same id until acknowledged. With ``expected_last_seq`` this is *append*.

        Raises SequenceMismatch (append only), MessageTooLarge, BusClosed.
        An append that is repeated after a lost acknowledgement is refused by the server although it was stored: the
        adapter then reads the first message after the expected sequence on the compared subject, which is ours if and
        only if ours was stored, whoever wrote after it, and answers Stored when it carries our id.
        """
        ...

    async def consume(
        self, stream: str, consumer: str, handler: Handler, *, credit: int, priority: int | None = None
    ) -> Subscription:
        """Pull from a durable consumer until ``leave``; at most ``credit`` deliveries are unhandled at a time."""
        ...

    def read(
        self, stream: str, *, filters: Sequence[str] = (), start_seq: int = 1, follow: bool = False
    ) -> AsyncIterator[Record]:
        """Stored messages from ``start_seq`` in order. Ends at what was last when it began, unless ``follow``."""
        ...

    async def last(self, stream: str, subject: str) -> Record | None:
        """Last stored message of a subject (wildcards allowed); None when there is none. One direct get."""
        ...

    async def first(self, stream: str, subject: str) -> Record | None:
        """First stored message of a subject (wildcards allowed); None when there is none. One direct get."""
        ...

    async def kv(self, bucket: str) -> KeyValue:
        """The bucket, made when missing (buckets are part of deployment, not of a run).

        Cheap to ask for each time: whether it is there is asked once a connection, and again after a reconnect.
        """
        ...

    async def ensure_stream(self, spec: StreamSpec) -> None:
        """Make the stream unless it exists. Raises ConfigError when it exists with another configuration."""
        ...

    async def ensure_consumer(self, spec: ConsumerSpec) -> None:
        """Make the consumer unless it exists. Raises ConfigError when it exists with another configuration."""
        ...

    async def delete_stream(self, name: str) -> None:
        """Idempotent."""
        ...

    async def stream_names(self) -> list[str]:
        """The names of all streams of the account."""
        ...

    async def stream_bytes(self, name: str) -> int:
        """Bytes stored in a stream. Raises Unavailable when there is no such stream."""
        ...

    async def pending(self, stream: str, consumer: str) -> int:
        """Messages of a consumer that are neither delivered nor acknowledged, plus those delivered and open."""
        ...

    def inbox(self) -> str:
        """A fresh subject with no other listener, under this connection's inbox prefix."""
        ...

    async def hint(self, subject: str, payload: bytes) -> None:
        """Core publish: may be lost."""
        ...

    async def on_hint(self, subject: str, handler: Callable[[bytes], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Core subscribe; returns a function that unsubscribes. Handlers must not wait for the server."""
        ...

    async def close(self) -> None:
        """End all subscriptions and the connection; idempotent."""
        ...


# What a message looks like on the wire, and the one size check; shared by both buses.


def headers_of(message: Message) -> dict[str, str]:
    """The message's own headers, its id, and what it expects to be last."""
    headers = dict(message.headers)
    headers["Nats-Msg-Id"] = message.message_id
    if message.expected_last_seq is not None:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(message.expected_last_seq)
        if message.expected_subject is not None:
            headers["Nats-Expected-Last-Subject-Sequence-Subject"] = message.expected_subject
    return headers


def check_size(message: Message, headers: Mapping[str, str]) -> None:
    """Raises MessageTooLarge. nats-py checks the payload alone, and then the server's refusal closes us for good."""
    header_bytes = 14 + sum(len(key.encode()) + len(value.encode()) + 4 for key, value in headers.items())
    total_bytes = header_bytes + len(message.payload)
    if total_bytes > MAX_PAYLOAD_BYTES:
        raise MessageTooLarge(
            f"{message.message_id} on {message.subject}: {total_bytes} bytes with headers, at most {MAX_PAYLOAD_BYTES} "
            "fit; nothing was sent. Put large bodies into the blob store."
        )


# Which keys and times to live a bucket takes; shared by both buses, so that neither takes more than the server.


_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")


def checked_key(bucket: str, key: str) -> str:
    """The key itself. Raises BadInput for one that is no subject suffix."""
    if not _KEY.fullmatch(key):
        raise BadInput(f"key {key!r} of bucket {bucket}: letters, digits and -/_= in parts joined by dots are allowed")
    return key


def checked_ttl(key: str, ttl_seconds: int | None) -> int | None:
    """The time to live itself. Raises BadInput for less than the server's smallest unit, a second."""
    if ttl_seconds is not None and (ttl_seconds < 1 or int(ttl_seconds) != ttl_seconds):
        raise BadInput(f"ttl_seconds of {key} is {ttl_seconds}; the server counts whole seconds from 1")
    return ttl_seconds
