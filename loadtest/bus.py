"""A durable hop, publish → journal → sourced work queue → waiting handler, against a core NATS request in the same run.

The request is the floor: two trips through the server, nothing stored. The hop is stored twice before it arrives.
Publisher and handler have a connection each to a nats-server of their own, and one event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import quantiles

import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from loadtest.report import Figure, arguments, publish
from seamlessflow.bus.base import ConsumerSpec, Delivery, Message, StreamSpec, Subscription
from seamlessflow.bus.jetstream import JetStreamBus, connect
from seamlessflow.bus.nats_server import EmbeddedServer

JOURNAL, QUEUE, CONSUMER, SUBJECT = "J_load", "Q_load", "c", "bench.hop"
FLOOR_SUBJECT = "floor"
REFERENCE = "core request"
TIMEOUT_SECONDS = 30.0


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--messages", type=int, default=1000, help="in each run, one after the other")
    parser.add_argument("--bytes", type=int, default=4096, help="payload of a message")
    parser.add_argument("--runs", type=int, default=3, help="the median counts")
    options = parser.parse_args(argv)
    if options.quick:
        options.messages, options.runs = 20, 1
    with tempfile.TemporaryDirectory() as scratch:
        server = EmbeddedServer(Path(scratch)).start()
        try:
            figures = uvloop.run(_measure(server.url, options))
        finally:
            server.stop()
    publish("bus", figures, options.results)


async def _measure(url: str, options: argparse.Namespace) -> dict[str, Figure]:
    payload = b"x" * options.bytes
    hop, floor = await Hop.open(url), await Floor.open(url)
    await _times(hop, floor, payload, options.messages // 10)  # connections, caches and the server's files are warm then
    runs = [await _times(hop, floor, payload, options.messages) for _ in range(options.runs)]
    figures = {}
    for percentile in (50, 99):
        ours, theirs = ([_percentile(times[side], percentile) for times in runs] for side in ("hop", "request"))
        figures[f"bus_hop_p{percentile}"] = Figure("us", "lower", ours, f"{REFERENCE}, p{percentile}", theirs)
    acknowledged = [_percentile(times["publish"], 50) for times in runs]
    requests = [_percentile(times["request"], 50) for times in runs]
    figures["bus_publish_p50"] = Figure("us", "lower", acknowledged, f"{REFERENCE}, p50", requests)
    await hop.close()
    await floor.close()
    return figures


async def _times(hop: Hop, floor: Floor, payload: bytes, num_messages: int) -> dict[str, list[float]]:
    """Microseconds of each message, requests and hops in turn."""
    times: dict[str, list[float]] = {"hop": [], "publish": [], "request": []}
    for _ in range(num_messages):
        times["request"].append(await floor.microseconds(payload))
        arrived, acknowledged = await hop.microseconds(payload)
        times["hop"].append(arrived)
        times["publish"].append(acknowledged)
    return times


def _percentile(values: list[float], percentile: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percentile - 1]


class Hop:
    """Our bus, as the services use it."""

    def __init__(self, sender: JetStreamBus, receiver: JetStreamBus) -> None:
        self._sender, self._receiver = sender, receiver
        self._count = 0
        self._arrived: asyncio.Future[float] | None = None
        self._subscription: Subscription | None = None

    @classmethod
    async def open(cls, url: str) -> Hop:
        hop = cls(await connect(url, name="sender"), await connect(url, name="receiver"))
        await hop._sender.ensure_stream(StreamSpec(JOURNAL, subjects=("bench.>",)))
        await hop._sender.ensure_stream(StreamSpec(QUEUE, source=JOURNAL, source_filters=(SUBJECT,)))
        await hop._sender.ensure_consumer(ConsumerSpec(QUEUE, CONSUMER, (SUBJECT,)))
        hop._subscription = await hop._receiver.consume(QUEUE, CONSUMER, hop._on_delivery, credit=16)
        return hop

    async def microseconds(self, payload: bytes) -> tuple[float, float]:
        """From publish to the handler's first line, and to the acknowledgement of the publish."""
        self._arrived = asyncio.get_running_loop().create_future()
        self._count += 1
        began = time.perf_counter()
        await self._sender.publish(Message(SUBJECT, payload, f"m{self._count}"))
        acknowledged = time.perf_counter()
        arrived = await asyncio.wait_for(self._arrived, TIMEOUT_SECONDS)
        return 1e6 * (arrived - began), 1e6 * (acknowledged - began)

    async def _on_delivery(self, delivery: Delivery) -> None:
        arrived = time.perf_counter()
        await delivery.ack()
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(arrived)

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.leave()
        await self._receiver.close()
        await self._sender.close()


class Floor:
    """The bare client: request and reply of the same payload, nothing stored."""

    def __init__(self, asker: Client, answerer: Client) -> None:
        self._asker, self._answerer = asker, answerer

    @classmethod
    async def open(cls, url: str) -> Floor:
        asker, answerer = Client(), Client()
        for client in (asker, answerer):
            await client.connect(url)

        async def answer(message: Msg) -> None:
            await message.respond(message.data)

        await answerer.subscribe(FLOOR_SUBJECT, cb=answer)
        # Not flush(): nats-py writes its PING past what is pending, so the PONG says nothing of the subscription. A
        # request over the same connection is behind it.
        await answerer.request(FLOOR_SUBJECT, timeout=TIMEOUT_SECONDS)
        return cls(asker, answerer)

    async def microseconds(self, payload: bytes) -> float:
        began = time.perf_counter()
        await self._asker.request(FLOOR_SUBJECT, payload, timeout=TIMEOUT_SECONDS)
        return 1e6 * (time.perf_counter() - began)

    async def close(self) -> None:
        await self._asker.close()
        await self._answerer.close()


if __name__ == "__main__":
    main()
