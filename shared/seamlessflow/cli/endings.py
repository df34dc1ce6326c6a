"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any

ASK_AGAIN_SECONDS = 0.5


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel until all have ended, whatever they raise.

    Asked again and again: before Python 3.12 ``asyncio.wait_for``, which nats-py waits with, swallows a cancellation that
    meets the answer.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=ASK_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)
