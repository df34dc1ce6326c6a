"""Acknowledgements share a write with what is sent next; alone they do not wait long, and none is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

from seamlessflow.bus.base import Delivery
from seamlessflow.bus.connection import SOON_SECONDS, Wire


class SentTo:
    """Keeps what it is given to send."""

    is_connected = True

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def publish(self, subject: str, payload: bytes, **options: Any) -> None:
        self.sent.append(payload)

    async def flush(self, **options: Any) -> None:
        pass


async def test_what_is_sent_soon_goes_before_what_is_sent_next() -> None:
    """In the order it was given, at the same moment."""
    client = SentTo()
    wire = Wire(client)
    await wire.send_soon("ack", b"1")
    await wire.send_soon("ack", b"2")
    assert client.sent == []

    await wire.send("a", b"3")

    assert client.sent == [b"1", b"2", b"3"]


async def test_what_is_sent_soon_goes_by_itself_when_nothing_else_is_sent() -> None:
    """Each time anew."""
    client = SentTo()
    wire = Wire(client)
    for payload in (b"1", b"2"):
        await wire.send_soon("ack", payload)
        await asyncio.sleep(20 * SOON_SECONDS)
        assert client.sent[-1] == payload


async def test_a_flush_takes_along_what_is_to_be_sent_soon() -> None:
    """So a connection that is closed in order owes nothing."""
    client = SentTo()
    wire = Wire(client)
    await wire.send_soon("ack", b"1")

    assert await wire.flush(1.0) and client.sent == [b"1"]


async def test_a_delivery_acknowledged_before_the_bus_closes_never_comes_again(world):
    """The very last thing it does."""
    keeper = await world.with_queue(ack_wait_seconds=60.0)
    bus = await world.client()
    handled = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        await delivery.ack()
        handled.set()

    await bus.consume(world.queue, "c", handle, credit=4)
    await keeper.publish(world.message("call.a"))
    await handled.wait()
    await bus.close()

    await world.until_pending(keeper, 0)
