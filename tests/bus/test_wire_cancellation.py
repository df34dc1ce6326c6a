"""A service that is to end cancels its loops once and waits for them: where a cancellation gets lost, the service stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from nats.aio.msg import Msg

from seamlessflow.bus.connection import Wire

OnMessage = Callable[[Msg], Awaitable[None]]


class AskedClient:
    """Is asked, and answers when the test says so."""

    is_connected = True

    def __init__(self) -> None:
        self._on_answer: OnMessage | None = None
        self._reply = ""
        self.answers_at_once = False

    def new_inbox(self) -> str:
        return "inbox"

    async def subscribe(self, subject: str, *, cb: OnMessage, **options: Any) -> None:
        assert subject == "inbox.*"
        self._on_answer = cb

    async def publish(self, subject: str, payload: bytes, *, reply: str, **options: Any) -> None:
        self._reply = reply
        if self.answers_at_once:
            await self.answer()

    async def answer(self) -> None:
        assert self._on_answer is not None
        await self._on_answer(Msg(self, self._reply, data=b"b"))


async def test_a_cancellation_that_meets_the_answer_is_not_lost() -> None:
    """Though the answer is there, whoever was to end ends."""
    client = AskedClient()
    task = asyncio.create_task(Wire(client).request("a", b"", timeout_seconds=5.0))
    await asyncio.sleep(0)
    await client.answer()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_same_holds_for_a_time_limit() -> None:
    """A limit that runs out at the moment of the answer is a TimeoutError for whoever set it, and no lost cancellation."""
    client, loop = AskedClient(), asyncio.get_running_loop()

    async def meet(limit: asyncio.Timeout) -> None:
        limit.reschedule(loop.time())
        await client.answer()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            meeting = loop.create_task(meet(limit))
            await Wire(client).request("a", b"", timeout_seconds=5.0)
    await meeting


async def test_a_request_made_while_being_cancelled_gets_its_answer() -> None:
    """Goodbyes are said in ``finally``: an older cancellation does not count."""
    client, said = AskedClient(), []
    client.answers_at_once = True

    async def leave() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            said.append((await Wire(client).request("a", b"", timeout_seconds=5.0)).payload)

    task = asyncio.create_task(leave())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert said == [b"b"]


async def test_a_cancellation_while_the_buffer_is_full_is_not_lost() -> None:
    """nats-py drops it while it waits for the socket to take more."""

    class FullClient(AskedClient):
        async def publish(self, subject: str, payload: bytes, *, reply: str = "", **options: Any) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60.0)

    for ask in (Wire(FullClient()).request("a", b"", timeout_seconds=5.0), Wire(FullClient()).send("a")):
        task = asyncio.create_task(ask)
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_answer_that_comes_too_late_changes_nothing() -> None:
    """The one asked next has its own."""
    client = AskedClient()
    wire = Wire(client)
    with pytest.raises(TimeoutError, match="no answer on a within"):
        await wire.request("a", b"", timeout_seconds=0.01)
    await client.answer()

    client.answers_at_once = True
    assert (await wire.request("a", b"", timeout_seconds=5.0)).payload == b"b"


async def test_a_broken_connection_ends_what_waits() -> None:
    """Instead of sitting out its time: it is asked again when the server is back."""
    wire = Wire(AskedClient())
    task = asyncio.create_task(wire.request("a", b"", timeout_seconds=60.0))
    await asyncio.sleep(0)
    await wire.on_lost()

    with pytest.raises(TimeoutError, match="the connection broke"):
        await task
