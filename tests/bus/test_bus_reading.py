"""Reading streams: order, filters, first and last, following."""

from __future__ import annotations

import asyncio

import pytest

from seamlessflow.errors import Unavailable


async def test_a_stream_is_read_in_order_and_in_full(world):
    """More than two batches, so that their seams are read too."""
    bus = await world.with_journal()
    payloads = await world.publish_many(bus, 1300)

    records = [record async for record in bus.read(world.journal)]

    assert [record.seq for record in records] == list(range(1, 1301))
    assert sorted(record.payload for record in records) == sorted(payloads)


async def test_reading_starts_where_it_is_told(world):
    """A service that knows sequence 2 asks from 3."""
    bus = await world.with_journal()
    await world.publish_many(bus, 4)

    assert [record.seq async for record in bus.read(world.journal, start_seq=3)] == [3, 4]
    assert [record.seq async for record in bus.read(world.journal, start_seq=5)] == []


async def test_filters_let_through_what_any_of_them_wants_once_and_in_order(world):
    """Filters may overlap."""
    bus = await world.with_journal()
    for tail in ("a.1", "b.1", "c.1", "a.2", "b.2", "c.2"):
        await bus.publish(world.message(tail, tail.encode()))

    wanted = (world.subject("a.>"), world.subject("*.2"))
    records = [record async for record in bus.read(world.journal, filters=wanted)]

    assert [record.payload for record in records] == [b"a.1", b"a.2", b"b.2", b"c.2"]
    assert [record.seq async for record in bus.read(world.journal, filters=(world.subject("z.>"),))] == []


async def test_reading_ends_at_what_was_last_when_it_began(world):
    """Otherwise a busy stream would never end."""
    bus = await world.with_journal()
    await world.publish_many(bus, 3)
    seen = []

    async for record in bus.read(world.journal):
        seen.append(record.seq)
        await bus.publish(world.message("call.more"))

    assert seen == [1, 2, 3]


async def test_an_empty_stream_is_read_to_its_end_and_a_missing_one_is_unavailable(world):
    """Nothing there is not the same as not there."""
    bus = await world.with_journal()
    assert [record async for record in bus.read(world.journal)] == []

    impatient = await world.client(patience_seconds=0.2)
    with pytest.raises(Unavailable, match="J_nowhere"):
        _ = [record async for record in impatient.read("J_nowhere")]


async def test_first_and_last_of_a_subject_are_found(world):
    """With wildcards too; None where nothing is stored."""
    bus = await world.with_journal()
    for tail in ("ev.a.1", "ev.b.1", "ev.a.2"):
        await bus.publish(world.message(tail, tail.encode()))

    first = await bus.first(world.journal, world.subject("ev.a.*"))
    last = await bus.last(world.journal, world.subject("ev.a.*"))

    assert first is not None and first.payload == b"ev.a.1"
    assert last is not None and last.payload == b"ev.a.2"
    assert await bus.last(world.journal, world.subject("ev.z.*")) is None
    assert await bus.first(world.journal, world.subject("ev.z.*")) is None


@pytest.mark.parametrize("filtered", [False, True])
async def test_a_follower_gets_the_old_then_the_new_within_a_quarter_of_a_second(world, filtered):
    """A new message reaches an idle follower soon, whether or not others came between that it does not want."""
    bus = await world.with_journal()
    await world.publish_many(bus, 2)
    loop = asyncio.get_running_loop()
    got: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

    async def follow() -> None:
        filters = (world.subject("call.>"),) if filtered else ()
        async for record in bus.read(world.journal, filters=filters, follow=True):
            got.put_nowait((record.seq, loop.time()))

    following = asyncio.create_task(follow())
    assert [(await asyncio.wait_for(got.get(), 5))[0] for _ in range(2)] == [1, 2]
    waits = []
    for _ in range(5):
        await asyncio.sleep(0.15)
        if filtered:
            await bus.publish(world.message("noise.a"))
        stored = await bus.publish(world.message("call.new"))
        began = loop.time()
        seq, came = await asyncio.wait_for(got.get(), 5)
        assert seq == stored.seq
        waits.append(came - began)
    following.cancel()

    assert sorted(waits)[2] < 0.3
