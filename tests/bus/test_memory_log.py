"""A stream in memory takes in what another server stored, as it is."""

import pytest

from seamlessflow.bus.base import Message, Record, StreamSpec
from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer

JOURNAL = StreamSpec("J_r", subjects=("sf.r.>",))
QUEUE = StreamSpec("Q_r", source="J_r", source_filters=("sf.r.b",))
STORED = [Record(f"sf.r.{name}", name.encode(), {"Nats-Msg-Id": name}, seq, 100.0 + seq) for name, seq in (("a", 3), ("b", 7))]


@pytest.fixture
def server() -> MemoryServer:
    made = MemoryServer()
    made.ensure_stream(JOURNAL)
    made.log("J_r").load(STORED)
    return made


async def test_what_is_loaded_keeps_its_sequences_and_times(server: MemoryServer):
    """Gaps stay gaps: reading from within one begins behind it, and the next message comes behind the last."""
    bus = MemoryBus(server)

    assert [record async for record in bus.read("J_r")] == STORED
    assert [record.seq async for record in bus.read("J_r", start_seq=4)] == [7]
    assert [record async for record in bus.read("J_r", start_seq=8)] == []
    assert (await bus.first("J_r", "sf.r.*"), await bus.last("J_r", "sf.r.*")) == (STORED[0], STORED[1])
    assert (await bus.publish(Message("sf.r.c", b"", "c"))).seq == 8


async def test_expected_sequences_are_those_that_were_loaded(server: MemoryServer):
    """An append behind a loaded record is stored; ids of loaded records are older than any de-duplication window."""
    bus = MemoryBus(server)

    assert (await bus.publish(Message("sf.r.b", b"", "next", expected_last_seq=7))).seq == 8
    assert (await bus.publish(Message("sf.r.a", b"", "a"))).duplicate is False


async def test_a_queue_that_is_made_later_has_what_was_loaded(server: MemoryServer):
    """As one that is sourced from a journal with a past."""
    server.ensure_stream(QUEUE)

    assert server.stream_bytes("Q_r") == len(b"b") + len("sf.r.b")


def test_sequences_only_grow(server: MemoryServer):
    """Nothing is loaded behind what is there already."""
    with pytest.raises(ValueError, match="record 7 cannot follow record 7"):
        server.log("J_r").load(STORED[1:])
