"""A subscription that was left, on a real server: nothing of its handler stays, whoever still has the subscription."""

from __future__ import annotations

import gc
import weakref

from seamlessflow.bus.base import ConsumerSpec, Delivery, StreamSpec
from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.nats_server import EmbeddedServer


class Trees:
    """What a handler refers to."""

    async def on_delivery(self, delivery: Delivery) -> None:
        await delivery.ack()


async def test_a_left_subscription_lets_go_of_its_handler(own_server: EmbeddedServer):
    """At once, not when another one begins, and without the collector."""
    bus = await connect(own_server.url, name="test")
    await bus.ensure_stream(StreamSpec("J", subjects=("sf.>",)))
    await bus.ensure_stream(StreamSpec("Q", source="J"))
    await bus.ensure_consumer(ConsumerSpec("Q", "c", (">",)))
    trees = Trees()
    found = weakref.ref(trees)
    subscription = await bus.consume("Q", "c", trees.on_delivery, credit=4)
    del trees
    assert found() is not None
    gc.disable()
    try:
        await subscription.leave()
        assert found() is None and not bus._pulls
    finally:
        gc.enable()
    await bus.close()
