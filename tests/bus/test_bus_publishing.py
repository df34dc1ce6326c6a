"""Publish and append: stored once, fenced, checked for size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seamlessflow.bus.base import MAX_PAYLOAD_BYTES
from seamlessflow.errors import MessageTooLarge, SequenceMismatch, Unavailable


async def test_a_message_published_twice_is_stored_once(world):
    """The journal knows the id, whichever client repeats it."""
    bus, other = await world.with_journal(), await world.client()
    message = world.message("call.a", b"hello")

    first, again = await bus.publish(message), await other.publish(message)

    assert (first.seq, first.duplicate) == (1, False)
    assert (again.seq, again.duplicate) == (1, True)
    assert [record.payload async for record in bus.read(world.journal)] == [b"hello"]


async def test_headers_and_id_travel_with_the_message(world):
    """What is read back is what was given, plus the id."""
    bus = await world.with_journal()

    await bus.publish(replace(world.message("call.a", b"x", message_id="id-1"), headers={"content-type": "json"}))

    record = await bus.last(world.journal, world.subject("call.a"))
    assert record is not None
    assert (record.message_id, record.headers["content-type"], record.seq) == ("id-1", "json", 1)
    assert record.time > 1_600_000_000


async def test_an_append_onto_the_expected_sequence_is_stored(world):
    """0 means that the subject is still empty; later the last sequence is named."""
    bus = await world.with_journal()

    first = await bus.publish(world.message("ev.a", after=0))
    second = await bus.publish(world.message("ev.a", after=first.seq))

    assert second.seq == first.seq + 1


async def test_of_two_appends_onto_the_same_sequence_the_second_is_refused(world):
    """The only fence there is: nothing of the loser is stored."""
    bus, rival = await world.with_journal(), await world.client()
    await bus.publish(world.message("ev.a", b"winner", after=0))

    with pytest.raises(SequenceMismatch):
        await rival.publish(world.message("ev.a", b"loser", after=0))

    assert [record.payload async for record in bus.read(world.journal)] == [b"winner"]


async def test_an_append_may_compare_a_whole_group_of_subjects(world):
    """A generation is asked for once, whatever tag and bucket the first request chose."""
    bus = await world.with_journal()
    group = world.subject("gen.*.*.g1")
    await bus.publish(replace(world.message("gen.policy.1.g1", after=0), expected_subject=group))

    with pytest.raises(SequenceMismatch):
        await bus.publish(replace(world.message("gen.policy.2.g1", after=0), expected_subject=group))


async def test_an_append_whose_acknowledgement_was_lost_is_stored_and_not_refused(world):
    """The repeat meets its own first copy and must not take it for a rival."""
    bus, restarted = await world.with_journal(), await world.client()
    append = world.message("ev.a", after=0)
    first = await bus.publish(append)

    again = await restarted.publish(append)

    assert (again.seq, again.duplicate) == (first.seq, True)


async def test_a_lost_acknowledgement_is_found_even_when_others_wrote_after_it(world):
    """The first message after the expected sequence tells, not the last."""
    bus = await world.with_journal()
    append = world.message("ev.a", after=0)
    first = await bus.publish(append)
    await bus.publish(world.message("ev.a", after=first.seq))

    assert (await bus.publish(append)).seq == first.seq


@pytest.mark.parametrize("where", ["payload", "headers"])
async def test_a_message_above_the_limit_is_refused_and_the_bus_goes_on(world, where):
    """Headers count too; sending it would cost the connection."""
    bus = await world.with_journal()
    message = world.message("call.a", b"x" * (MAX_PAYLOAD_BYTES - 100))
    too_large = (
        replace(message, headers={"h": "x" * 200}) if where == "headers" else replace(message, payload=b"x" * MAX_PAYLOAD_BYTES)
    )

    with pytest.raises(MessageTooLarge):
        await bus.publish(too_large)

    assert (await bus.publish(message)).seq == 1


async def test_a_subject_that_no_stream_takes_is_unavailable_and_says_so(world):
    """After its patience, publish says what is missing instead of trying for ever."""
    bus = await world.client(patience_seconds=0.2)

    with pytest.raises(Unavailable, match=f"sf.{world.run}.call.a"):
        await bus.publish(world.message("call.a"))
