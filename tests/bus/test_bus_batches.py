"""Batches when the wire misbehaves: what is missing is noticed, what is late is ignored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from seamlessflow.bus.base import Record
from seamlessflow.bus.connection import Incoming
from seamlessflow.bus.reader import Batches, merged

OnMessage = Callable[[Incoming], Awaitable[None]]
END = Incoming("", "", b"", {"Nats-Num-Pending": "0"}, 204, "EOB")


def stored(seq: int, *, after: int) -> Incoming:
    """An answer that holds the message ``seq`` and names the one before it."""
    headers = {
        "Nats-Subject": "s",
        "Nats-Sequence": str(seq),
        "Nats-Last-Sequence": str(after),
        "Nats-Time-Stamp": "2026-01-01T00:00:00.123456789Z",
    }
    return Incoming("", "", b"", headers, None, "")


class ScriptedWire:
    """Answers each request with the next script; ``request_shift`` makes it answer as if to an earlier request."""

    def __init__(self, *scripts: list[Incoming], request_shift: int = 0) -> None:
        self._scripts = list(scripts)
        self._shift = request_shift
        self._on_message: OnMessage | None = None

    def inbox(self) -> str:
        return "inbox"

    async def until_connected(self) -> None:
        return None

    def when_lost(self, tell: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def listen(self, subject: str, on_message: OnMessage) -> Callable[[], Awaitable[None]]:
        self._on_message = on_message

        async def stop() -> None:
            self._on_message = None

        return stop

    async def send(self, subject: str, payload: bytes = b"", *, reply: str = "") -> None:
        assert self._on_message is not None
        inbox, _, request = reply.rpartition(".")
        for each in self._scripts.pop(0):
            to = f"{inbox}.{int(request) + self._shift}"
            await self._on_message(Incoming(to, "", each.payload, each.headers, each.status, each.description))


async def test_a_batch_is_complete_when_the_server_says_so() -> None:
    """The last answer says that nothing is left."""
    async with Batches(ScriptedWire([stored(3, after=0), stored(7, after=3), END]), "J") as batches:
        batch = await batches.fetch(">", 1)

    assert ([record.seq for record in batch.records], batch.complete) == ([3, 7], True)
    assert batch.records[0].time == pytest.approx(1767225600.123456)


async def test_a_gap_ends_the_batch_before_it() -> None:
    """7 says that 5 came before it, and 5 never arrived: the caller asks again from 4."""
    async with Batches(ScriptedWire([stored(3, after=0), stored(7, after=5), END]), "J") as batches:
        batch = await batches.fetch(">", 1)

    assert ([record.seq for record in batch.records], batch.complete) == ([3], False)


async def test_answers_to_a_request_that_was_given_up_are_ignored(monkeypatch) -> None:
    """They may come late and must not be taken for answers to the present one."""
    monkeypatch.setattr("seamlessflow.bus.reader.ANSWER_SECONDS", 0.05)
    wire = ScriptedWire([stored(3, after=0), END], request_shift=-1)
    async with Batches(wire, "J") as batches:
        batch = await batches.fetch(">", 1)

    assert (batch.records, batch.complete) == ([], False)


async def sequence(*numbers: int) -> AsyncIterator[Record]:
    for number in numbers:
        yield Record("s", b"", {}, number, 0.0)


async def test_ordered_sources_merge_into_one_without_repetition() -> None:
    """Sources of any length, empty ones included."""
    sources = [sequence(1, 4, 5), sequence(), sequence(2, 4, 9)]

    assert [record.seq async for record in merged(sources)] == [1, 2, 4, 5, 9]


async def test_a_cancellation_that_meets_the_end_of_a_batch_is_not_lost():
    """Both in one turn of the loop: the reader's task must end, or a service that stops would read on for ever."""
    wire = ScriptedWire([])
    async with Batches(wire, "S") as batches:  # type: ignore[arg-type]
        fetching = asyncio.create_task(batches.fetch("s", 1))
        while not batches._request:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)

        batches._ended.set()
        fetching.cancel()
        await asyncio.wait({fetching}, timeout=2)

    assert fetching.cancelled()
