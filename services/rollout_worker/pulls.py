"""Which consumers a worker pulls from, and how its free slots are shared among them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from seamlessflow.bus.base import Bus, Delivery, Handler, Subscription
from seamlessflow.contracts import Lease, Service
from seamlessflow.contracts.streams import generation_consumer, queue_stream
from seamlessflow.telemetry import count

OWNER_PRIORITY, BACKUP_PRIORITY, LENT_PRIORITY = 0, 1, 2
"""A backup gets what the owner has no room for, and everything when the owner is gone or trains; a node that is lent by
training, and will be called back, what is left then."""
_WORDS = {OWNER_PRIORITY: "owner", BACKUP_PRIORITY: "backup", LENT_PRIORITY: "lent"}


def parts_of(lease: Lease, work_tags: Sequence[str], num_buckets: int) -> dict[str, int]:
    """Consumers of the tags a lease names, each with the priority of this node's pull.

    work_tags: all of the run, in the order in which the lease counts its buckets.
    """
    owned, other = frozenset(lease.buckets), LENT_PRIORITY if lease.lent else BACKUP_PRIORITY
    return {
        generation_consumer(work_tags, tag, bucket): OWNER_PRIORITY if place * num_buckets + bucket in owned else other
        for place, tag in enumerate(work_tags)
        if tag in lease.tags
        for bucket in range(num_buckets)
    }


OWNER_WEIGHT = 4
"""Shares of the free slots that are asked for owned parts, to one for a backup: a group that arrives at once finds room."""


def credits_of(running: Mapping[str, int], num_slots: int, owned: Container[str] = ()) -> dict[str, int]:
    """Credit of each part: what it runs now, and a share of the free slots.

    So a part that is busy while others are quiet may fill all slots. Rounded up, so that no part starves: up to one
    delivery per part may wait in the engine's own queue. No free slot: nobody asks for more.
    """
    free = max(0, num_slots - sum(running.values()))
    weights = {part: OWNER_WEIGHT if part in owned else 1 for part in running}
    total = sum(weights.values())
    return {part: count + -(-free * weights[part] // total) for part, count in running.items()}


@dataclass(slots=True)
class _Pull:
    subscription: Subscription
    priority: int
    num_running: int = 0


class Pulls:
    """The standing pulls of one run. ``handler`` gets every delivery."""

    def __init__(self, bus: Bus, run: str, handler: Handler, num_slots: int) -> None:
        self._bus, self._run, self._handler, self._num_slots = bus, run, handler, num_slots
        self.num_taken: Counter[int] = Counter()
        """Deliveries by the priority of the pull that brought them."""
        self._pulls: dict[str, _Pull] = {}
        self._leaving: dict[asyncio.Task[None], _Pull] = {}
        """A pull that was left takes slots until its last handler has ended, and its task with it."""
        self._is_open = False

    async def open(self, parts: Mapping[str, int]) -> None:
        """Pull from exactly these consumers, each with its priority. What runs from others is finished, not handed back."""
        for part in [part for part, pull in self._pulls.items() if parts.get(part) != pull.priority]:
            self._leave(self._pulls.pop(part))
        self._is_open = True
        for part in sorted(parts.keys() - self._pulls.keys()):
            await self._join(part, parts[part])
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

    async def _join(self, part: str, priority: int) -> None:
        stream = queue_stream(Service.ROLLOUT_WORKER, self._run)

        async def on_delivery(delivery: Delivery) -> None:
            pull.num_running += 1
            self.num_taken[priority] += 1
            count("generations_taken", _WORDS[priority])
            self._share_if_many()
            try:
                await self._handler(delivery)
            finally:
                pull.num_running -= 1
                self._share_if_many()

        pull = _Pull(await self._bus.consume(stream, part, on_delivery, credit=0, priority=priority), priority)
        self._pulls[part] = pull

    def _leave(self, pull: _Pull) -> None:
        task = asyncio.create_task(pull.subscription.leave())
        self._leaving[task] = pull
        task.add_done_callback(self._has_left)

    def _has_left(self, task: asyncio.Task[None]) -> None:
        del self._leaving[task]
        if self._is_open:
            self._share()

    def _share_if_many(self) -> None:
        if self._is_open and len(self._pulls) + len(self._leaving) > 1:
            self._share()

    def _share(self) -> None:
        owned = {part for part, pull in self._pulls.items() if pull.priority == OWNER_PRIORITY}
        num_slots = self._num_slots - sum(pull.num_running for pull in self._leaving.values())
        shares = credits_of({part: pull.num_running for part, pull in self._pulls.items()}, num_slots, owned)
        for part, pull in self._pulls.items():
            pull.subscription.set_credit(shares[part] if self._is_open else 0)
