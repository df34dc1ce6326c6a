"""Which consumers a worker pulls from, and how its free slots are shared among them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from seamlessflow.bus.base import Bus, Delivery, Handler, Subscription
from seamlessflow.contracts import Service
from seamlessflow.contracts.routes import consumer_name, queue_stream

OWNER_PRIORITY = 0


def parts_of(tags: Iterable[str], num_buckets: int) -> frozenset[str]:
    """Consumer parts of the tags a lease names."""
    return frozenset(f"{tag}.{bucket}" for tag in tags for bucket in range(num_buckets))


def credits_of(running: Mapping[str, int], num_slots: int) -> dict[str, int]:
    """Credit of each part: what it runs now, and an even share of the free slots.

    So a part that is busy while others are quiet may fill all slots. Rounded up, so that no part starves: up to one
    delivery per part may wait in the engine's own queue. No free slot: nobody asks for more.
    """
    free = max(0, num_slots - sum(running.values()))
    share = -(-free // len(running)) if running else 0
    return {part: count + share for part, count in running.items()}


@dataclass(slots=True)
class _Pull:
    subscription: Subscription
    num_running: int = 0


class Pulls:
    """The standing pulls of one run. ``handler`` gets every delivery."""

    def __init__(self, bus: Bus, run: str, handler: Handler, num_slots: int) -> None:
        self._bus, self._run, self._handler, self._num_slots = bus, run, handler, num_slots
        self._pulls: dict[str, _Pull] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_open = False

    async def open(self, parts: frozenset[str]) -> None:
        """Pull from exactly these parts. What runs from others is finished, not handed back."""
        for part in self._pulls.keys() - parts:
            self._leave(self._pulls.pop(part))
        self._is_open = True
        for part in sorted(parts - self._pulls.keys()):
            await self._join(part)
        self._share()

    def pause(self) -> None:
        """Ask for nothing more; what is held is kept."""
        self._is_open = False
        self._share()

    async def leave(self) -> None:
        """Leave all consumers; waits for running handlers."""
        self._is_open = False
        for part in list(self._pulls):
            self._leave(self._pulls.pop(part))
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _join(self, part: str) -> None:
        stream, consumer = queue_stream(Service.ROLLOUT_WORKER, self._run), consumer_name(Service.ROLLOUT_WORKER, part)

        async def on_delivery(delivery: Delivery) -> None:
            pull.num_running += 1
            self._share_if_many()
            try:
                await self._handler(delivery)
            finally:
                pull.num_running -= 1
                self._share_if_many()

        pull = _Pull(await self._bus.consume(stream, consumer, on_delivery, credit=0, priority=OWNER_PRIORITY))
        self._pulls[part] = pull

    def _leave(self, pull: _Pull) -> None:
        task = asyncio.create_task(pull.subscription.leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _share_if_many(self) -> None:
        if self._is_open and len(self._pulls) > 1:
            self._share()

    def _share(self) -> None:
        shares = credits_of({part: pull.num_running for part, pull in self._pulls.items()}, self._num_slots)
        for part, pull in self._pulls.items():
            pull.subscription.set_credit(shares[part] if self._is_open else 0)
