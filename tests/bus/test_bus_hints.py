"""Hints: fast, to whoever listens now."""

from __future__ import annotations

import asyncio

import pytest

from seamlessflow.errors import BusClosed


async def test_a_hint_reaches_who_listens_until_it_stops(world, eventually):
    """Wildcards work; after unsubscribing nothing comes."""
    bus, other = await world.client(), await world.client()
    heard: list[bytes] = []

    async def on_hint(payload: bytes) -> None:
        heard.append(payload)

    stop = await bus.on_hint(world.subject("poke.*"), on_hint)
    await asyncio.sleep(0.05)
    await other.hint(world.subject("poke.a"), b"1")
    await other.hint(world.subject("else"), b"2")
    await eventually(lambda: heard == [b"1"])

    await stop()
    await other.hint(world.subject("poke.a"), b"3")
    await asyncio.sleep(0.05)

    assert heard == [b"1"]


async def test_an_inbox_is_a_subject_nobody_else_has(world, eventually):
    """Answers to it come back."""
    bus, other = await world.client(), await world.client()
    mine, another = bus.inbox(), bus.inbox()
    assert mine != another
    heard: list[bytes] = []

    async def on_hint(payload: bytes) -> None:
        heard.append(payload)

    await bus.on_hint(mine, on_hint)
    await asyncio.sleep(0.05)
    await other.hint(mine, b"answer")

    await eventually(lambda: heard == [b"answer"])


async def test_a_closed_bus_says_so(world):
    """Whoever goes on using it learns that this process must end."""
    bus = await world.with_journal()
    await bus.close()

    with pytest.raises(BusClosed):
        await bus.publish(world.message("call.a"))
