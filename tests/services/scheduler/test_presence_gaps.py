"""Presence: since when it was renewed without a gap, as its own process knows it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from unittest.mock import AsyncMock

import pytest

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.contracts import NodeStatus
from seamlessflow.runtime import Presence, presence


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("slow", ["refuses", "answers late"])
async def test_a_gap_lasts_until_a_renewal_is_stored_in_time(monkeypatch: pytest.MonkeyPatch, slow: str):
    """A renewal that was begun in time and stored late is a gap too: the scheduler may have looked in between."""
    monkeypatch.setattr(presence, "GAP_SECONDS", 0.3)
    monkeypatch.setattr(presence, "PRESENCE_LEAST_SECONDS", 0.01)
    bus = MemoryBus()
    bucket = await bus.kv("NODES")
    monkeypatch.setattr(bus, "kv", AsyncMock(return_value=bucket))
    put, is_open = bucket.put, asyncio.Event()
    is_open.set()

    async def gated(key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        if not is_open.is_set():
            if slow == "refuses":
                raise presence.SeamlessFlowError("away")
            await is_open.wait()
        return await put(key, value, ttl_seconds=ttl_seconds)

    monkeypatch.setattr(bucket, "put", gated)
    ours = Presence(bus, NodeStatus(node="n", service="trajectory-manager", instance="i", capabilities=(), pid=1))
    assert ours.unbroken_since == 0.0  # a process that announces nothing is not watched
    ours.every_seconds = 0.05
    task = asyncio.create_task(ours.run())
    await until(lambda: ours.unbroken_since > 0.0)
    first = ours.unbroken_since
    await asyncio.sleep(0.4)
    assert ours.unbroken_since == first

    is_open.clear()
    await until(lambda: ours.unbroken_since == math.inf)
    back_at = time.monotonic()
    is_open.set()
    await until(lambda: ours.unbroken_since < math.inf)
    assert ours.unbroken_since >= back_at
    task.cancel()
    await asyncio.wait({task})
