"""Which consumers a worker pulls from, in which order, and how its free slots are shared among them.

Where a run tells long generations from others (``fleet.long_tail``), a worker asks first for the long ones of the buckets it
owns: what comes later fills the gaps that they leave, and no worker gets all of them because it came first. One that is lent,
and will be called back, asks for long ones last of all workers, and only while nothing else is there. Nobody can ask a queue
what is in it, so *nothing is there* is what a pull says that was open for ``DRY_SECONDS`` and brought nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass

from seamlessflow.bus.base import Bus, Delivery, Handler, Subscription
from seamlessflow.contracts import Lease, Service
from seamlessflow.contracts.streams import generation_consumer, queue_stream
from seamlessflow.contracts.tags import is_long
from seamlessflow.telemetry import count

OWNER_PRIORITY, BACKUP_PRIORITY, LENT_PRIORITY = 0, 1, 2
"""A backup gets what the owner has no room for, and everything when the owner is gone or trains; a node that is lent by
training, and will be called back, what is left then."""
_WORDS = {OWNER_PRIORITY: "owner", BACKUP_PRIORITY: "backup", LENT_PRIORITY: "lent"}


def parts_of(lease: Lease, work_tags: Sequence[str], num_buckets: int) -> dict[str, int]:
    """Consumers of the tags a lease names, each with the priority of this node's pull.

    work_tags: all of the run, in the order in which the lease counts its buckets. Who is lent owns nothing of what is long.
    """
    owned, other = frozenset(lease.buckets), LENT_PRIORITY if lease.lent else BACKUP_PRIORITY

    def priority(place: int, tag: str, bucket: int) -> int:
        is_owner = place * num_buckets + bucket in owned and not (lease.lent and is_long(tag))
        return OWNER_PRIORITY if is_owner else other

    return {
        generation_consumer(work_tags, tag, bucket): priority(place, tag, bucket)
        for place, tag in enumerate(work_tags)
        if tag in lease.tags
        for bucket in range(num_buckets)
    }


def late_parts(lease: Lease, work_tags: Sequence[str], num_buckets: int) -> frozenset[str]:
    """Consumers that are asked only while the others bring nothing: all but the long ones it owns; who owns none, or is lent,
    the long ones. Empty where all are of one kind.
    """
    parts = parts_of(lease, work_tags, num_buckets)
    long = {generation_consumer(work_tags, t, b) for t in lease.tags if is_long(t) for b in range(num_buckets)} & parts.keys()
    if len(long) in (0, len(parts)):
        return frozenset()
    own = {part for part in long if parts[part] == OWNER_PRIORITY}
    return frozenset(parts.keys() - own if own else long)


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


def credits_in_turn(
    running: Mapping[str, int],
    num_slots: int,
    owned: Container[str] = (),
    *,
    late: Collection[str],
    granted: Mapping[str, int],
    is_dry: bool,
) -> dict[str, int]:
    """The same where late parts are asked only while early ones bring nothing: early ones get every free slot.

    granted: the credit that each part has. is_dry: whether early parts bring nothing, so that late ones get their share; else
    they get nothing new, and keep of that share what they were given: a pull that is open at the server cannot be taken back.
    Both may come at once, and then the last ones are handed back.
    """
    shares = credits_of(running, num_slots, owned)
    if sum(running.values()) >= num_slots:
        return shares
    kept = {part: shares[part] if is_dry else max(running[part], min(granted.get(part, 0), shares[part])) for part in late}
    early = {part: count for part, count in running.items() if part not in late}
    return {**kept, **credits_of(early, num_slots - sum(running[part] for part in late), owned)}


DRY_SECONDS = 0.05
"""A pull that was open for this long and brought nothing has nothing to bring: some tens of round trips."""


@dataclass(slots=True)
class Turns:
    """Whether the early parts have nothing to bring, so that it is the late ones' turn. Pure; times in seconds of one clock."""

    is_dry: bool = False
    _asked_since: float | None = None

    def brought(self, now: float) -> None:
        """An early part brought something: there may be more."""
        self.is_dry, self._asked_since = False, now

    def asked(self, now: float, *, has_room: bool) -> float | None:
        """Look again: with room early parts are being asked. Returns when the next look is due. None: at the next change."""
        if self.is_dry:
            return None
        if not has_room:  # nobody asks, so nothing can be concluded
            self._asked_since = None
            return None
        self._asked_since = now if self._asked_since is None else self._asked_since
        self.is_dry = now - self._asked_since >= DRY_SECONDS
        return None if self.is_dry else self._asked_since + DRY_SECONDS


@dataclass(slots=True)
class _Pull:
    subscription: Subscription
    priority: int
    num_running: int = 0
    credit: int = 0


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
        self._late: frozenset[str] = frozenset()
        self._turns = Turns()
        self._look: asyncio.TimerHandle | None = None

    async def open(self, parts: Mapping[str, int], late: frozenset[str] = frozenset()) -> None:
        """Pull from exactly these consumers, each with its priority, from ``late`` ones while the others bring nothing.

        What runs from others is finished, not handed back.
        """
        if late != self._late:
            self._late, self._turns = late, Turns()
        for part in [part for part, pull in self._pulls.items() if parts.get(part) != pull.priority]:
            self._leave(self._pulls.pop(part))
        self._is_open = True
        for part in sorted(parts.keys() - self._pulls.keys()):
            await self._join(part, parts[part])
        self._share()

    def pause(self) -> None:
        """Ask for nothing more; what is held is kept."""
        self._is_open, self._turns = False, Turns()  # what is there when it opens again is not known
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
            if part not in self._late:
                self._turns.brought(asyncio.get_running_loop().time())
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
        running = {part: pull.num_running for part, pull in self._pulls.items()}
        is_dry = self._is_late_turn(has_room=sum(running.values()) < num_slots)
        granted = {part: pull.credit for part, pull in self._pulls.items()}
        late = self._late & self._pulls.keys()
        shares = credits_in_turn(running, num_slots, owned, late=late, granted=granted, is_dry=is_dry)
        for part, pull in self._pulls.items():
            pull.credit = shares[part] if self._is_open else 0
            pull.subscription.set_credit(pull.credit)

    def _is_late_turn(self, *, has_room: bool) -> bool:
        """Whether late parts may be asked; where they may not yet, it is looked at again in time."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if not self._late:
            return True
        loop = asyncio.get_running_loop()
        due = self._turns.asked(loop.time(), has_room=has_room and self._is_open)
        if due is not None:
            self._look = loop.call_at(due, self._share)
        return self._turns.is_dry
