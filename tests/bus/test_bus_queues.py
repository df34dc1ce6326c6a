"""Sourced queues and consumers: who gets what, how many at a time, and what ends a delivery."""

from __future__ import annotations

import asyncio
import json

import pytest

from seamlessflow.bus.base import Delivery
from seamlessflow.errors import ConfigError, Unavailable


async def test_a_queue_takes_from_its_journal_what_its_filters_let_in(world, inbox, eventually):
    """Several filters, one of them with a wildcard in the middle; the rest stays in the journal."""
    bus = await world.with_journal()
    await bus.ensure_stream(world.queue_spec("call.1.>", "gen.*.x"))
    await bus.ensure_consumer(world.consumer_spec(tail=">"))
    for tail in ("call.1.a", "call.2.a", "gen.policy.x", "gen.policy.y", "ev.step"):
        await bus.publish(world.message(tail, tail.encode()))

    await bus.consume(world.queue, "c", inbox, credit=4)

    await eventually(lambda: len(inbox.payloads) >= 2)
    assert sorted(inbox.payloads) == [b"call.1.a", b"gen.policy.x"]
    assert len([record async for record in bus.read(world.journal)]) == 5


async def test_a_queue_made_late_still_gets_what_came_before(world, inbox, eventually):
    """Tasks may be published before the scheduler made the queues."""
    bus = await world.with_journal()
    payloads = await world.publish_many(bus, 3)
    await bus.ensure_stream(world.queue_spec("call.>"))
    await bus.ensure_consumer(world.consumer_spec())

    await bus.consume(world.queue, "c", inbox, credit=1)

    await eventually(lambda: len(inbox.payloads) == 3)
    assert inbox.payloads == payloads


async def test_no_more_handlers_run_at_a_time_than_there_is_credit(world, eventually):
    """Credit bounds handlers and open pulls together, and every message is handled."""
    bus = await world.with_queue()
    running, most, done = 0, 0, 0
    numbers: set[int] = set()

    async def handle(delivery: Delivery) -> None:
        nonlocal running, most, done
        numbers.add(delivery.num_delivered)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        done += 1
        await delivery.ack()

    await bus.consume(world.queue, "c", handle, credit=3)
    await world.publish_many(bus, 40)

    await eventually(lambda: done >= 40)
    assert (most, done) == (3, 40)
    assert numbers == {1}, "what is not asked for need not be handed back"
    await world.until_pending(bus, 0)


async def test_a_few_requests_stand_for_all_the_credit_there_is(world, eventually):
    """The server keeps timers for every request: a consumer of 64 slots that took one message after another keeps few."""
    if world.kind == "memory":
        pytest.skip("asks nobody")
    bus, watching = await world.with_queue(), await world.client()
    asked: list[int] = []

    async def on_ask(payload: bytes) -> None:
        asked.append(json.loads(payload)["batch"])

    await watching.on_hint(f"$JS.API.CONSUMER.MSG.NEXT.{world.queue}.c", on_ask)
    let_go = [asyncio.Event() for _ in range(64)]
    taken, ended = 0, 0

    async def handle(delivery: Delivery) -> None:
        nonlocal taken, ended
        number, taken = taken, taken + 1
        if number < len(let_go):
            await let_go[number].wait()
        ended += 1
        await delivery.ack()

    await bus.consume(world.queue, "c", handle, credit=64)
    await world.publish_many(bus, 64)
    await eventually(lambda: taken == 64)
    asked.clear()
    for number, event in enumerate(let_go):
        event.set()
        await eventually(lambda least=number: ended > least)
    await asyncio.sleep(0.1)

    # Those that ran out meanwhile are asked for again.
    assert len(asked) < 20
    assert sum(asked) >= 33
    await world.publish_many(bus, 200)
    await eventually(lambda: ended == 264)


async def test_credit_zero_pauses_and_more_credit_resumes(world, inbox, eventually):
    """A node without free slots takes nothing, and stays subscribed."""
    bus = await world.with_queue()
    subscription = await bus.consume(world.queue, "c", inbox, credit=0)
    await world.publish_many(bus, 3)
    await world.until_pending(bus, 3)
    assert inbox.payloads == []

    subscription.set_credit(2)

    await eventually(lambda: len(inbox.payloads) == 3)


async def test_a_message_handed_back_with_a_delay_comes_again_after_it(world, eventually):
    """And says that it is the second time."""
    bus = await world.with_queue()
    times: list[tuple[int, float]] = []

    async def handle(delivery: Delivery) -> None:
        times.append((delivery.num_delivered, asyncio.get_running_loop().time()))
        await (delivery.nak(0.3) if delivery.num_delivered == 1 else delivery.ack())

    await bus.consume(world.queue, "c", handle, credit=1)
    await bus.publish(world.message("call.a"))

    await eventually(lambda: len(times) == 2)
    assert [number for number, _ in times] == [1, 2]
    assert times[1][1] - times[0][1] >= 0.29


async def test_a_delivery_without_acknowledgement_is_given_to_somebody_else(world, inbox, eventually):
    """The first holder died; after ack_wait its message belongs to the next."""
    bus, dying = await world.with_queue(ack_wait_seconds=0.4), await world.client()
    held = asyncio.Event()

    async def hang(delivery: Delivery) -> None:
        held.set()
        await asyncio.sleep(60)

    await dying.consume(world.queue, "c", hang, credit=1)
    await bus.publish(world.message("call.a", b"work"))
    await held.wait()
    await dying.abort()

    await bus.consume(world.queue, "c", inbox, credit=1)

    await eventually(lambda: inbox.payloads == [b"work"])


async def test_a_progress_ping_keeps_the_delivery(world, eventually):
    """Work that takes longer than ack_wait is not given to anybody else while its holder says that it lives."""
    bus = await world.with_queue(ack_wait_seconds=0.4)
    numbers: list[int] = []
    done = asyncio.Event()

    async def work(delivery: Delivery) -> None:
        numbers.append(delivery.num_delivered)
        for _ in range(10):
            await asyncio.sleep(0.1)
            await delivery.in_progress()
        await delivery.ack()
        done.set()

    await bus.consume(world.queue, "c", work, credit=5)
    await bus.publish(world.message("call.a"))

    await asyncio.wait_for(done.wait(), 5)
    assert numbers == [1]


async def test_a_terminated_message_never_comes_again(world):
    """It leaves the queue at once; its dead letter is somewhere else."""
    bus = await world.with_queue(ack_wait_seconds=0.2)
    seen: list[bytes] = []

    async def handle(delivery: Delivery) -> None:
        seen.append(delivery.payload)
        await delivery.term("cannot be parsed")

    await bus.consume(world.queue, "c", handle, credit=1)
    await bus.publish(world.message("call.a", b"bad"))
    await asyncio.sleep(0.8)

    assert seen == [b"bad"]
    assert await bus.pending(world.queue, "c") == 0


async def test_a_handler_that_raises_gets_its_message_again(world, eventually):
    """One failure costs a second, not the subscription."""
    bus = await world.with_queue()
    numbers: list[int] = []

    async def fail_once(delivery: Delivery) -> None:
        numbers.append(delivery.num_delivered)
        if delivery.num_delivered == 1:
            raise RuntimeError("a bug of ours")
        await delivery.ack()

    await bus.consume(world.queue, "c", fail_once, credit=1)
    await bus.publish(world.message("call.a"))

    await eventually(lambda: numbers == [1, 2])


async def test_the_owner_is_served_first_the_backup_takes_the_overflow_and_the_inheritance(world, eventually):
    """Priority 0 until its slots are full, then priority 5; after the owner's death everything goes to the backup."""
    bus, owner_bus = await world.with_queue(prioritized=True), await world.client()
    taken: dict[str, int] = {"owner": 0, "backup": 0}
    finish = asyncio.Event()

    def worker(name: str):
        async def handle(delivery: Delivery) -> None:
            taken[name] += 1
            await finish.wait()
            await delivery.ack()

        return handle

    await bus.consume(world.queue, "c", worker("backup"), credit=20, priority=5)
    await owner_bus.consume(world.queue, "c", worker("owner"), credit=4, priority=0)
    await asyncio.sleep(0.1)

    await world.publish_many(bus, 3)
    await eventually(lambda: sum(taken.values()) == 3)
    assert taken == {"owner": 3, "backup": 0}

    await world.publish_many(bus, 5)
    await eventually(lambda: sum(taken.values()) == 8)
    assert taken == {"owner": 4, "backup": 4}

    await owner_bus.abort()
    await world.publish_many(bus, 3)
    await eventually(lambda: taken["backup"] == 7)
    finish.set()


async def test_of_three_that_pull_each_gets_what_those_before_it_have_no_room_for(world, eventually):
    """Owner, backup, and a node that is lent and will be called back."""
    bus = await world.with_queue(prioritized=True)
    taken: list[str] = []
    finish = asyncio.Event()

    def worker(name: str):
        async def handle(delivery: Delivery) -> None:
            taken.append(name)
            await finish.wait()
            await delivery.ack()

        return handle

    for name, priority in (("lent", 2), ("backup", 1), ("owner", 0)):
        client = await world.client()
        await client.consume(world.queue, "c", worker(name), credit=2, priority=priority)
    await asyncio.sleep(0.1)
    for count in range(1, 7):
        await world.publish_many(bus, 1)
        await eventually(lambda count=count: len(taken) == count)

    assert taken == ["owner", "owner", "backup", "backup", "lent", "lent"]
    finish.set()


async def test_what_was_handed_back_comes_before_what_was_never_delivered(world, eventually):
    """So long generations, which are those that move, are begun again first; what is new waits."""
    bus = await world.with_queue()
    handled: list[tuple[bytes, int]] = []

    async def handle(delivery: Delivery) -> None:
        handled.append((delivery.payload, delivery.num_delivered))
        await delivery.ack()

    payloads = await world.publish_many(bus, 6)
    held: list[Delivery] = []

    async def hold(delivery: Delivery) -> None:
        held.append(delivery)
        await asyncio.Event().wait()

    first = await world.client()
    await first.consume(world.queue, "c", hold, credit=2)
    await eventually(lambda: len(held) == 2)
    for delivery in held:
        await delivery.nak()
    await first.abort()
    await asyncio.sleep(0.05)
    await bus.consume(world.queue, "c", handle, credit=1)

    await eventually(lambda: len(handled) == 6)
    assert sorted(payload for payload, _ in handled[:2]) == payloads[:2]
    assert [number for _, number in handled] == [2, 2, 1, 1, 1, 1]


async def test_leaving_under_load_strands_nothing(world, inbox, eventually):
    """Twenty nodes come and go while messages flow; with an ack_wait of a minute a stranded one would be missed."""
    bus, nodes = await world.with_queue(ack_wait_seconds=60), await world.client()
    total, leaving = 0, True

    async def produce() -> None:
        nonlocal total
        while leaving:
            await asyncio.gather(*(bus.publish(world.message("call.x", b"%d" % number)) for number in range(total, total + 20)))
            total += 20
            await asyncio.sleep(0.005)

    await bus.consume(world.queue, "c", inbox, credit=8)
    producing = asyncio.create_task(produce())
    for _ in range(20):
        visitor = await nodes.consume(world.queue, "c", inbox, credit=8)
        await asyncio.sleep(0.02)
        await visitor.leave()
    leaving = False
    await producing

    await eventually(lambda: len(inbox.payloads) >= total)
    assert {int(payload) for payload in inbox.payloads} == set(range(total))
    await world.until_pending(bus, 0)


async def test_leaving_waits_for_running_handlers_and_may_be_asked_twice(world, eventually):
    """What was begun is finished."""
    bus = await world.with_queue()
    begun, finished = asyncio.Event(), []

    async def handle(delivery: Delivery) -> None:
        begun.set()
        await asyncio.sleep(0.2)
        await delivery.ack()
        finished.append(delivery.payload)

    subscription = await bus.consume(world.queue, "c", handle, credit=1)
    await bus.publish(world.message("call.a", b"work"))
    await begun.wait()

    await asyncio.gather(subscription.leave(), subscription.leave())

    assert finished == [b"work"]
    await subscription.leave()


async def test_after_leaving_nothing_comes_any_more(world, inbox):
    """Messages wait in the queue for whoever binds next."""
    bus = await world.with_queue()
    subscription = await bus.consume(world.queue, "c", inbox, credit=2)
    await subscription.leave()

    await world.publish_many(bus, 2)
    await world.until_pending(bus, 2)

    assert inbox.payloads == []


async def test_a_consumer_cannot_be_changed(world):
    """The same again is fine; another filter would strand what came before, so it is refused."""
    bus = await world.with_queue()
    await bus.ensure_consumer(world.consumer_spec())

    with pytest.raises(ConfigError, match="another configuration"):
        await bus.ensure_consumer(world.consumer_spec(tail="call.only.>"))


async def test_two_consumers_of_a_queue_cannot_want_the_same_message(world):
    """A work queue gives each message to one consumer, so overlapping filters are a mistake."""
    bus = await world.with_queue()

    with pytest.raises(ConfigError):
        await bus.ensure_consumer(world.consumer_spec(tail="call.1.>", name="d"))


async def test_a_stream_cannot_be_changed_either(world):
    """The same again is fine; other subjects under its name are refused."""
    bus = await world.with_queue()
    await bus.ensure_stream(world.queue_spec("call.>"))

    with pytest.raises(ConfigError):
        await bus.ensure_stream(world.queue_spec("gen.>"))


async def test_one_may_subscribe_before_the_consumer_exists(world, inbox, eventually):
    """Services start in any order; the pull is tried again each second."""
    bus = await world.with_journal()
    await bus.ensure_stream(world.queue_spec("call.>"))
    await bus.consume(world.queue, "c", inbox, credit=1)
    await asyncio.sleep(0.1)

    await bus.ensure_consumer(world.consumer_spec())
    await bus.publish(world.message("call.a", b"late"))

    await eventually(lambda: inbox.payloads == [b"late"])


async def test_streams_are_named_weighed_and_deleted(world):
    """Deleting twice is as good as once."""
    bus = await world.with_queue()
    assert {world.journal, world.queue} <= set(await bus.stream_names())
    before = await bus.stream_bytes(world.journal)
    await bus.publish(world.message("call.a", b"x" * 1000))
    assert await bus.stream_bytes(world.journal) >= before + 1000

    await bus.delete_stream(world.queue)
    await bus.delete_stream(world.queue)

    assert world.queue not in await bus.stream_names()
    with pytest.raises(Unavailable):
        await bus.pending(world.queue, "c")
