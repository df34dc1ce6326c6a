"""Handling events: a table of handlers, each of which returns the events to publish.

For every delivery: decode, handle, publish the returned events, and only then acknowledge. A message that cannot be decoded or
handled is dead-lettered with its reason, then terminated; the service goes on.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import structlog

from seamlessflow.bus.base import PROGRESS_SECONDS, Bus, Delivery, Subscription
from seamlessflow.codec import decode
from seamlessflow.contracts import DeadLetter, Event, Service
from seamlessflow.errors import BadInput, Unavailable
from seamlessflow.store.large_payloads import Store
from seamlessflow.telemetry import count

from .journal import Journal

log = structlog.get_logger()

HandlerTable = Mapping[type[Event], Callable[[Any], Awaitable[Iterable[Event]]]]
OnReturn = Callable[[Event], Awaitable[None]]
MAX_ATTEMPTS = 5
"""Attempts at a message that fails for an unknown reason, before it is dead-lettered."""
RETRY_SECONDS = 1.0


class EventHandlers:
    """Turns deliveries into handler calls. ``serial`` keeps handlers in the order of delivery."""

    def __init__(self, bus: Bus, journal: Journal, store: Store, service: Service) -> None:
        self._bus, self._journal, self._store, self._service = bus, journal, store, service
        self._failures: dict[tuple[str, int], int] = {}
        self._held: set[Delivery] = set()
        self._pings: asyncio.Task[None] | None = None

    async def consume(
        self,
        stream: str,
        consumer: str,
        table: HandlerTable,
        *,
        credit: int,
        serial: bool = False,
        on_return: OnReturn | None = None,
    ) -> Subscription:
        """Handle a consumer's messages by a table until the returned subscription is left.

        on_return: called before the handler with an event that was delivered before: younger ones may have overtaken it.
        """
        turn = asyncio.Lock() if serial else None

        async def on_delivery(delivery: Delivery) -> None:
            await self._handle(delivery, table, turn, stream, on_return)

        return await self._bus.consume(stream, consumer, on_delivery, credit=credit)

    async def _handle(
        self,
        delivery: Delivery,
        table: HandlerTable,
        turn: asyncio.Lock | None,
        stream: str,
        on_return: OnReturn | None,
    ) -> None:
        self._held.add(delivery)
        if self._pings is None or self._pings.done():
            self._pings = asyncio.create_task(self._keep_alive())
        try:
            if turn is None:
                events = await self._judge(delivery, table, on_return)
            else:
                async with turn:  # FIFO: the order of delivery
                    events = await self._judge(delivery, table, on_return)
            await self._journal.publish_all(events)
            await delivery.ack()
            self._failures.pop((stream, delivery.seq), None)
        except BadInput as wrong:
            await self.dead_letter(delivery, str(wrong))
        except Unavailable as wrong:
            log.warning("event.delayed", subject=delivery.subject, reason=str(wrong))
            await delivery.nak(RETRY_SECONDS)
        except Exception as wrong:
            await self._count_failure(delivery, stream, wrong)
        finally:
            self._held.discard(delivery)

    async def _keep_alive(self) -> None:
        """Ping deliveries that are held for long, so that they are not delivered elsewhere; ends when none is held.

        One task for all: most deliveries are over long before their first ping.
        """
        before: set[Delivery] = set()
        while self._held:
            for delivery in before & self._held:
                with suppress(Unavailable):  # without a connection the server cannot deliver it elsewhere either
                    await delivery.in_progress()
            before = set(self._held)
            await asyncio.sleep(PROGRESS_SECONDS)

    async def _judge(self, delivery: Delivery, table: HandlerTable, on_return: OnReturn | None) -> list[Event]:
        event = await self.open(delivery)
        if on_return is not None and delivery.num_delivered > 1:
            await on_return(event)
        handler = table.get(type(event))
        events = [] if handler is None else list(await handler(event))
        count("events_handled", type(event).__name__)
        return events

    async def open(self, delivery: Delivery) -> Event:
        """The event of a delivery. Raises MalformedMessage."""
        payload = await self._store.attach(delivery.payload, dict(delivery.headers))
        return decode(delivery.subject, payload, delivery.headers)

    async def _count_failure(self, delivery: Delivery, stream: str, wrong: Exception) -> None:
        failures = self._failures[stream, delivery.seq] = self._failures.get((stream, delivery.seq), 0) + 1
        log.error("event.failed", subject=delivery.subject, failures=failures, exc_info=wrong)
        if failures >= MAX_ATTEMPTS:
            await self.dead_letter(delivery, f"failed {failures} times: {type(wrong).__name__}: {wrong}")
        else:
            await delivery.nak(RETRY_SECONDS)

    async def dead_letter(self, delivery: Delivery, reason: str) -> None:
        """Dead-letter a delivery with its reason, then end it."""
        log.error("event.dead", subject=delivery.subject, reason=reason)
        await self._journal.publish(as_dead_letter(self._service, delivery, reason))
        await delivery.term(reason[:200])
        count("events_dead")


def as_dead_letter(service: Service, delivery: Delivery, reason: str) -> DeadLetter:
    """A delivery as a dead letter; the same message gives the same letter."""
    identity = hashlib.sha256(delivery.subject.encode() + delivery.payload).hexdigest()[:24]
    return DeadLetter(
        run=delivery.subject.split(".")[1],
        service=service.value,
        letter=identity,
        reason=reason,
        subject=delivery.subject,
        payload=delivery.payload,
        headers=dict(delivery.headers),
    )


async def keep_alive(delivery: Delivery) -> None:
    """Ping until cancelled, so that slow work is not delivered elsewhere."""
    while True:
        await asyncio.sleep(PROGRESS_SECONDS)
        await delivery.in_progress()
