"""What a killed nats-server costs: time, and nothing else."""

from __future__ import annotations

import asyncio
import itertools

import nats

from seamlessflow.bus.base import Delivery
from seamlessflow.bus.jetstream import connect


async def test_a_server_killed_under_load_loses_nothing(fragile, own_server, inbox, eventually):
    """Killed three times while publishing and consuming: all stored once, all handled at least once."""
    bus, consumer = await fragile.with_queue(ack_wait_seconds=1.0), await fragile.client()
    await consumer.consume(fragile.queue, "c", inbox, credit=16)
    numbers, killing = itertools.count(), True
    published: list[str] = []

    async def produce() -> None:
        while killing:
            name = f"p{next(numbers)}"
            await bus.publish(fragile.message("call.x", name.encode(), message_id=name))
            published.append(name)

    producing = asyncio.gather(*(produce() for _ in range(8)))
    for _ in range(3):
        so_far = len(published)
        await eventually(lambda least=so_far + 300: len(published) > least)
        own_server.kill()
        own_server.start()
    killing = False
    await producing

    stored = [record.message_id async for record in bus.read(fragile.journal)]
    assert sorted(stored) == sorted(published)
    await eventually(lambda: {*inbox.payloads} == {name.encode() for name in published}, within_seconds=15)


async def test_an_idle_standing_pull_is_opened_again_after_a_restart(fragile, own_server, inbox, eventually):
    """The server forgets open pulls without a word."""
    bus = await fragile.with_queue()
    await bus.consume(fragile.queue, "c", inbox, credit=2)
    await asyncio.sleep(0.1)

    own_server.kill()
    own_server.start()
    await bus.publish(fragile.message("call.a", b"after"))

    await eventually(lambda: inbox.payloads == [b"after"], within_seconds=3)


async def test_a_pull_that_falls_silent_is_opened_again(fragile, inbox, eventually):
    """Heartbeats tell: when a pull that we believe to be open is unknown to the server, messages still come."""
    bus = await fragile.with_queue()
    subscription = await bus.consume(fragile.queue, "c", inbox, credit=1)
    await asyncio.sleep(0.1)
    subscription._open += 1  # as if a request had been lost on its way

    await fragile.publish_many(bus, 3)

    await eventually(lambda: len(inbox.payloads) == 3, within_seconds=6)


async def test_a_follower_goes_on_after_a_restart(fragile, own_server, eventually):
    """In order, without a gap, without a repetition."""
    bus, reader = await fragile.with_journal(), await fragile.client()
    seen: list[int] = []

    async def follow() -> None:
        async for record in reader.read(fragile.journal, follow=True):
            seen.append(record.seq)

    following = asyncio.create_task(follow())
    await fragile.publish_many(bus, 700)
    own_server.kill()
    own_server.start()
    await fragile.publish_many(bus, 700)

    await eventually(lambda: len(seen) >= 1400, within_seconds=10)
    following.cancel()
    assert seen == list(range(1, 1401))


async def test_what_is_published_while_the_server_is_away_is_stored_once(fragile, own_server):
    """Publish waits; nobody has to try again."""
    bus = await fragile.with_journal()
    own_server.kill()
    publishing = [asyncio.create_task(bus.publish(fragile.message("call.a"))) for _ in range(50)]
    append = asyncio.create_task(bus.publish(fragile.message("ev.a", after=0)))
    await asyncio.sleep(0.7)
    assert not any(task.done() for task in (*publishing, append))

    own_server.start()
    stored = await asyncio.wait_for(asyncio.gather(*publishing, append), 10)

    assert sorted(each.seq for each in stored) == list(range(1, 52))
    assert len([record async for record in bus.read(fragile.journal)]) == 51


async def test_a_bucket_survives_a_restart(fragile, own_server):
    """Revisions go on from where they were."""
    bucket = await (await fragile.client()).kv("NODES")
    revision = await bucket.create("n", b"1")
    own_server.kill()
    own_server.start()

    assert await bucket.update("n", b"2", revision) > revision


async def test_leaving_while_the_server_is_away_ends(fragile, own_server, inbox):
    """A service that is told to stop must be able to, whatever the server does."""
    bus = await fragile.with_queue()
    subscription = await bus.consume(fragile.queue, "c", inbox, credit=2)
    await asyncio.sleep(0.1)
    own_server.kill()

    await asyncio.wait_for(subscription.leave(), 8)


async def test_a_deleted_consumer_that_is_made_again_is_pulled_from_again(fragile, own_server, inbox, eventually, monkeypatch):
    """The scheduler may delete a consumer to fence its holder; the pull then asks once a second and no faster."""
    bus = await fragile.with_queue()
    await bus.consume(fragile.queue, "c", inbox, credit=2)
    await asyncio.sleep(0.1)
    asked: list[str] = []
    send = bus._wire.send

    async def counting_send(subject: str, payload: bytes = b"", *, reply: str = "") -> None:
        asked.append(subject)
        await send(subject, payload, reply=reply)

    monkeypatch.setattr(bus._wire, "send", counting_send)
    admin = await nats.connect(own_server.url)
    await admin.jetstream().delete_consumer(fragile.queue, "c")
    await asyncio.sleep(1.5)
    assert 1 <= len(asked) <= 3

    await bus.ensure_consumer(fragile.consumer_spec())
    await bus.publish(fragile.message("call.a", b"again"))

    await eventually(lambda: inbox.payloads == [b"again"], within_seconds=4)
    await admin.close()


async def test_a_connection_closed_for_good_is_reported_once(own_server):
    """nats-py closes on a protocol error; the process has to know. Our own close is no such thing."""
    reports: list[str] = []
    bus = await connect(own_server.url, name="victim", on_closed=lambda: reports.append("closed"))
    peaceful = await connect(own_server.url, name="peaceful", on_closed=lambda: reports.append("peaceful"))
    await peaceful.close()

    client = bus._wire._client
    await client._send_command(b"NONSENSE\r\n")
    await client._flush_pending()
    for _ in range(200):
        if reports:
            break
        await asyncio.sleep(0.02)

    assert reports == ["closed"]


async def test_connecting_waits_for_a_server_that_is_not_there_yet(own_server):
    """Services may start before the server."""
    own_server.kill()
    connecting = asyncio.create_task(connect(own_server.url, name="early"))
    await asyncio.sleep(0.5)
    assert not connecting.done()

    own_server.start()

    await (await asyncio.wait_for(connecting, 10)).close()


async def test_a_retry_never_runs_a_handler_for_a_message_that_was_acknowledged(fragile, own_server, eventually):
    """A work queue removes what is acknowledged, even when the server is killed right after."""
    bus = await fragile.with_queue(ack_wait_seconds=0.5)
    numbers: list[int] = []

    async def handle(delivery: Delivery) -> None:
        numbers.append(delivery.num_delivered)
        await delivery.ack()

    await bus.consume(fragile.queue, "c", handle, credit=8)
    await fragile.publish_many(bus, 200)
    await eventually(lambda: len(numbers) == 200)
    await asyncio.sleep(0.1)
    own_server.kill()
    own_server.start()
    await asyncio.sleep(1.5)

    assert numbers == [1] * 200
    assert await bus.pending(fragile.queue, "c") == 0


async def test_a_bucket_is_looked_for_once_a_connection_and_again_after_a_restart(fragile, own_server, eventually):
    """Leases and heads are read every second by everybody; whether the bucket is there is asked no more often than needed."""
    bus = await fragile.client()
    await (await bus.kv("B_once")).put("k", b"1")
    known = await bus.kv("B_once")
    assert await bus.kv("B_once") is known

    own_server.kill()
    own_server.start()
    await eventually(lambda: bus._wire.reconnects > 0 and bus.connected)

    again = await bus.kv("B_once")
    assert again is not known
    assert (await again.get("k")).value == b"1"
