"""A service that is to end cancels its loops once and waits for them: where a cancellation gets lost, the service stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.aio.msg import Msg

from seamlessflow.bus.wire import Wire


class AskedClient:
    """Waits for its answer as nats-py does."""

    is_connected = True

    def __init__(self) -> None:
        self.answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    async def request(self, *asked: Any, **options: Any) -> Msg:
        return await asyncio.wait_for(self.answer, 5.0)


async def test_a_cancellation_that_meets_the_answer_is_not_lost() -> None:
    """Before Python 3.12 wait_for returns the answer, and nobody hears of the cancellation any more."""
    client = AskedClient()
    task = asyncio.create_task(Wire(client).request("a", b"", timeout_seconds=5.0))
    await asyncio.sleep(0)
    client.answer.set_result(Msg(client, "a", data=b"b"))
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_same_holds_for_a_time_limit() -> None:
    """A limit that runs out at the moment of the answer is a TimeoutError for whoever set it, and no lost cancellation."""
    client, loop = AskedClient(), asyncio.get_running_loop()

    def meet(limit: asyncio.Timeout) -> None:
        client.answer.set_result(Msg(client, "a", data=b"b"))
        limit.reschedule(loop.time())

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            loop.call_soon(meet, limit)
            await Wire(client).request("a", b"", timeout_seconds=5.0)


async def test_a_request_made_while_being_cancelled_gets_its_answer() -> None:
    """Goodbyes are said in ``finally``: an older cancellation does not count."""
    client, said = AskedClient(), []
    client.answer.set_result(Msg(client, "a", data=b"b"))

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
