"""A standing pull that is told its credit again and again, as each of a worker's pulls is at every delivery of any of them."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock, Mock

from seamlessflow.bus.consumer import StandingPull


async def test_only_a_new_credit_is_a_reason_to_ask_again():
    """Told the same it sends nothing and does not even wake; told more it asks for the difference."""
    wire = Mock(inbox=lambda: "_INBOX.x", listen=AsyncMock(return_value=AsyncMock()), send=AsyncMock(), connected=True)
    pull = StandingPull(wire, "Q", "c", AsyncMock(), credit=4, priority=None)
    await pull.start()
    await asyncio.sleep(0.01)
    assert wire.send.await_count == 1

    for _ in range(10):
        pull.set_credit(4)
    assert not pull._wake.is_set()
    pull.set_credit(12)
    await asyncio.sleep(0.01)
    assert wire.send.await_count == 2
    assert b'"batch": 8' in wire.send.await_args.args[1]
    pull.abandon()
