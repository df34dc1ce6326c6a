"""Deliveries that are held for minutes or hours: one loop keeps them all alive.

A task per delivery would be thousands of tasks; a delivery that comes again replaces the older handle of the same message.
"""

from __future__ import annotations

import asyncio

from seamlessflow.bus.base import PROGRESS_SECONDS, Delivery


class HeldDeliveries:
    """Deliveries by why they are held (a group, or another key)."""

    def __init__(self) -> None:
        self._by_key: dict[str, dict[str, Delivery]] = {}

    def hold(self, key: str, delivery: Delivery) -> None:
        """Keep alive until released, forgotten or handed back."""
        self._by_key.setdefault(key, {})[delivery.subject] = delivery

    def forget(self, key: str, delivery: Delivery) -> None:
        """No longer ours to end; nothing is said to the bus."""
        held = self._by_key.get(key, {})
        held.pop(delivery.subject, None)
        if not held:
            self._by_key.pop(key, None)

    @property
    def keys(self) -> list[str]:
        return list(self._by_key)

    async def release(self, key: str) -> None:
        """Acknowledge all that is held under a key."""
        for delivery in self._by_key.pop(key, {}).values():
            await delivery.ack()

    async def hand_back_all(self) -> None:
        """Give everything back, for the next trainer to have at once."""
        by_key, self._by_key = self._by_key, {}
        for held in by_key.values():
            for delivery in held.values():
                await delivery.nak()

    async def keep_alive(self) -> None:
        """Ping everything until cancelled."""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            for held in list(self._by_key.values()):
                for delivery in list(held.values()):
                    await delivery.in_progress()
