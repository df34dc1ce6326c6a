"""What is told to end ends, even when a cancellation is lost on the way."""

import asyncio

from seamlessflow.cli import shutdown


async def test_a_task_that_loses_a_cancellation_is_asked_again(monkeypatch):
    """As asyncio.wait_for loses one that meets its answer."""
    monkeypatch.setattr(shutdown, "ASK_AGAIN_SECONDS", 0.01)
    lost = 0

    async def forgetful():
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if lost == 2:
                    raise
                lost += 1

    async def fails():
        raise ValueError("no")

    tasks = [asyncio.create_task(forgetful()), asyncio.create_task(fails())]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await shutdown.end(*tasks)

    assert tasks[0].cancelled()
    assert lost == 2
