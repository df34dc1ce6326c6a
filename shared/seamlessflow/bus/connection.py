"""The edge to nats-py: the only module that touches its partly typed client.

Always true: nothing is sent while the connection is away (nats-py would buffer it and send it again later, and every
caller here repeats by itself), except acknowledgements, which may be late. A closed connection raises BusClosed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from seamlessflow.errors import BusClosed

# Answers that are waited for, by the token that each of them names.
#
# Not nats-py's own requests: they wait by ``asyncio.wait_for``, which before Python 3.12 swallows a cancellation that meets the
# answer, so that a loop which asks the server would go on for ever though its service is to end; and what they do around it
# is a fifth of the CPU time of storing a message.


T = TypeVar("T")


class Awaited(Generic[T]):
    """``T``: an answer."""

    def __init__(self) -> None:
        self._num_asked = 0
        self._waiting: dict[str, asyncio.Future[T]] = {}

    @contextmanager
    def one(self, timeout_seconds: float) -> Iterator[tuple[str, asyncio.Future[T]]]:
        """A token of its own, and what will be the answer. Awaiting that raises TimeoutError."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._num_asked += 1
        token = str(self._num_asked)
        self._waiting[token] = answer
        limit = loop.call_later(timeout_seconds, _fail, answer, "it did not come")
        try:
            yield token, answer
        finally:
            limit.cancel()
            del self._waiting[token]

    def came(self, token: str, answer: T) -> None:
        """Without effect when its waiter is gone."""
        waiting = self._waiting.get(token)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def fail_all(self, reason: str) -> None:
        """End every waiter with this reason."""
        for waiting in list(self._waiting.values()):
            _fail(waiting, reason)


def _fail(waiting: asyncio.Future[T], reason: str) -> None:
    if not waiting.done():
        waiting.set_exception(TimeoutError(reason))


NO_RESPONDERS = 503
"""Status of a request without a listener: a stream or consumer that is missing, or not recovered yet."""

SOON_SECONDS = 0.005
"""How long what is sent ``soon`` may wait for something to travel with."""

_PENDING_BYTES = 1 << 30
"""A subscription drops messages above this many unread bytes; credit keeps us far below."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message as it came off the wire. ``status`` is None for anything that carries a payload of its own."""

    subject: str
    reply: str
    payload: bytes
    headers: Mapping[str, str]
    status: int | None
    description: str


class Wire:
    """One connection. ``reconnects`` moves each time the server came back: whatever was open there is gone."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._told_when_lost: set[Callable[[], None]] = set()
        self._answers = ""
        self._opening = asyncio.Lock()
        self._awaited: Awaited[Incoming] = Awaited()
        self._soon: list[tuple[str, bytes]] = []
        self._sending_soon: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether the server is reachable now."""
        return self._client.is_connected

    @property
    def reconnects(self) -> int:
        """How often the connection was made anew."""
        return int(self._client.stats["reconnects"])

    def inbox(self) -> str:
        """A fresh subject under this connection's inbox prefix."""
        return self._client.new_inbox()

    async def until_connected(self) -> None:
        """Waits as long as it takes. Raises BusClosed."""
        while not self._client.is_connected:
            self._raise_if_closed()
            await asyncio.sleep(0.02)

    async def request(
        self, subject: str, payload: bytes, *, timeout_seconds: float, headers: Mapping[str, str] | None = None
    ) -> Incoming:
        """One answer, which may be a status (503: no listener). Raises TimeoutError, BusClosed."""
        await self.until_connected()
        copied = dict(headers) if headers is not None else None
        try:
            with self._awaited.one(timeout_seconds) as (token, answer):
                reply = f"{await self._answer_inbox()}.{token}"
                await self._send_held()
                await _cancellable(self._client.publish(subject, payload, reply=reply, headers=copied))
                return await answer
        except nats.errors.ConnectionClosedError as error:
            raise self._closed() from error
        except (TimeoutError, nats.errors.OutboundBufferLimitError) as error:
            raise TimeoutError(f"no answer on {subject} within {timeout_seconds} s: {error}") from error

    async def _answer_inbox(self) -> str:
        """Under which answers come; listened to from the first request on, as long as the connection lives."""
        if not self._answers:
            async with self._opening:  # no request before the inbox is subscribed
                if not self._answers:
                    inbox = self.inbox()
                    listening = self._client.subscribe(f"{inbox}.*", cb=self._on_answer, pending_bytes_limit=_PENDING_BYTES)
                    await _cancellable(listening)
                    self._answers = inbox
        return self._answers

    async def _on_answer(self, raw: Msg) -> None:
        self._awaited.came(raw.subject.rpartition(".")[2], _incoming(raw))

    async def send(self, subject: str, payload: bytes = b"", *, reply: str = "") -> None:
        """Fire and forget; kept and sent later while the connection is away, as far as the buffer goes."""
        try:
            await self._send_held()
            await _cancellable(self._client.publish(subject, payload, reply=reply))
        except nats.errors.ConnectionClosedError as error:
            raise self._closed() from error
        except nats.errors.OutboundBufferLimitError as error:
            raise TimeoutError(f"the connection is away and its buffer is full: {subject} was not sent") from error

    async def send_soon(self, subject: str, payload: bytes) -> None:
        """``send`` of a message without a waiter: it goes before the next message, or by itself after ``SOON_SECONDS``.

        A write to the socket wakes the server and costs more than what is written; so acknowledgements share one.
        """
        self._soon.append((subject, payload))
        if self._sending_soon is None or self._sending_soon.done():
            self._sending_soon = asyncio.create_task(self._send_held_later())

    async def _send_held_later(self) -> None:
        await asyncio.sleep(SOON_SECONDS)
        with suppress(TimeoutError, nats.errors.Error):  # as if it had been lost on its way
            await self._send_held()

    async def _send_held(self) -> None:
        held, self._soon = self._soon, []
        for subject, payload in held:
            await _cancellable(self._client.publish(subject, payload))

    async def listen(self, subject: str, on_message: Callable[[Incoming], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Calls ``on_message`` with one message after the other; it must not wait for the server. Returns the end."""

        async def on_raw(raw: Msg) -> None:
            await on_message(_incoming(raw))

        try:
            subscription: NatsSubscription = await self._client.subscribe(
                subject, cb=on_raw, pending_bytes_limit=_PENDING_BYTES
            )
        except nats.errors.ConnectionClosedError as error:
            raise self._closed() from error

        async def stop() -> None:
            if not self._client.is_closed:
                await subscription.unsubscribe()

        return stop

    def when_lost(self, tell: Callable[[], None]) -> Callable[[], None]:
        """Calls ``tell`` each time the connection breaks: what was asked gets no answer. Returns how to stop that."""
        self._told_when_lost.add(tell)
        return lambda: self._told_when_lost.discard(tell)

    async def on_lost(self) -> None:
        """nats-py reports a broken connection. Open requests end now instead of waiting for their timeout."""
        self._awaited.fail_all("the connection broke")
        for tell in list(self._told_when_lost):
            tell()

    async def flush(self, timeout_seconds: float) -> bool:
        """True when the server has seen everything sent so far."""
        try:
            await self._send_held()
            await _cancellable(self._client.flush(timeout=timeout_seconds))  # type: ignore[arg-type]  # takes float
        except (nats.errors.Error, TimeoutError):
            return False
        return True

    async def close(self) -> None:
        """Close for good; later requests raise BusClosed."""
        await self._client.close()

    def _raise_if_closed(self) -> None:
        if self._client.is_closed:
            raise self._closed()

    def _closed(self) -> BusClosed:
        return BusClosed(f"the connection to NATS is closed for good ({self._client.last_error or 'by us'}); exit")


async def _cancellable(waiting: Awaitable[T]) -> T:
    """Wait for nats-py, which swallows cancellations: ``asyncio.wait_for`` does before Python 3.12, where one meets the answer,
    and so does a publish that waits for a full buffer. A loop that asks the server would go on for ever, though its service
    is to end."""
    task = asyncio.current_task()
    assert task is not None
    num_asked = task.cancelling()
    try:
        return await waiting
    finally:
        if task.cancelling() > num_asked:
            raise asyncio.CancelledError


def _incoming(raw: Msg) -> Incoming:
    headers: dict[str, Any] = raw.headers or {}
    # A status never has a payload; no message of ours has a "Status" header and an empty payload.
    status = headers.get("Status") if not raw.data else None
    number = int(status) if status is not None and status.isdigit() else None
    return Incoming(raw.subject, raw.reply, raw.data, headers, number, headers.get("Description", ""))
