"""Which consumers a worker pulls from, in which order, and how its free slots are shared among them.

Where a run tells long generations from others (``fleet.long_tail``), a worker asks first for the long ones of the buckets it
owns: what comes later fills the gaps that they leave, and no worker gets all of them because it came first. One that is lent,
and will be called back, asks for long ones last of all workers, and only while nothing else fills its slots. Nobody can ask a
queue what is in it, so that is concluded from the room that the first ones left unused for ``DRY_SECONDS`` (``Turns``).

What is in the bucket that is nobody's begins new episodes: of that a worker takes as many as it has room for contexts
(``contexts``), and says in which of its buckets their next calls find it. What continues an episode is never refused for that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from seamlessflow.bus.base import Bus, Delivery, Handler, Subscription
from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import Lease, Service
from seamlessflow.contracts.streams import all_buckets, generation_consumer, queue_stream, unowned_bucket
from seamlessflow.contracts.tags import is_long
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.telemetry import count
from seamlessflow_rollout_worker.weights.pinned_versions import Keeping

from .context_budget import Contexts

OWNER_PRIORITY, BACKUP_PRIORITY, LENT_PRIORITY = 0, 1, 2
"""A backup gets what the owner has no room for, and everything when the owner is gone or trains; a node that is lent by
training, and will be called back, what is left then."""
_WORDS = {OWNER_PRIORITY: "owner", BACKUP_PRIORITY: "backup", LENT_PRIORITY: "lent"}


def parts_of(lease: Lease, work_tags: Sequence[str], num_buckets: int, has_classes: bool = False) -> dict[str, int]:
    """Consumers of the tags a lease names, each with the priority of this node's pull.

    work_tags: all of the run, in the order in which the lease counts its buckets. has_classes: whether they tell long
    generations from others; who is lent owns nothing of what is long. What is nobody's is everybody's alike, and goes to who is
    lent when nobody else has room.
    """
    owned, other = frozenset(lease.buckets), LENT_PRIORITY if lease.lent else BACKUP_PRIORITY

    def priority(place: int, tag: str, bucket: int) -> int:
        if bucket == unowned_bucket(num_buckets):
            return LENT_PRIORITY if lease.lent else OWNER_PRIORITY
        is_owner = place * num_buckets + bucket in owned and not (lease.lent and is_long(tag, has_classes=has_classes))
        return OWNER_PRIORITY if is_owner else other

    return {
        generation_consumer(work_tags, tag, bucket): priority(place, tag, bucket)
        for place, tag in enumerate(work_tags)
        if tag in lease.tags
        for bucket in all_buckets(num_buckets)
    }


def common_parts(lease: Lease, work_tags: Sequence[str], num_buckets: int) -> frozenset[str]:
    """Consumers of what begins new episodes, of the tags a lease names."""
    nobodys = unowned_bucket(num_buckets)
    if nobodys is None:
        return frozenset()
    return frozenset(generation_consumer(work_tags, tag, nobodys) for tag in work_tags if tag in lease.tags)


def owned_buckets(lease: Lease, work_tags: Sequence[str], num_buckets: int) -> dict[str, tuple[int, ...]]:
    """Of each work tag of a run the affinity buckets that a lease says its node owns."""
    owned: dict[str, tuple[int, ...]] = {}
    for number in lease.buckets:
        place, bucket = divmod(number, num_buckets)
        if place < len(work_tags):
            owned[work_tags[place]] = (*owned.get(work_tags[place], ()), bucket)
    return owned


def late_parts(lease: Lease, work_tags: Sequence[str], num_buckets: int, has_classes: bool = False) -> frozenset[str]:
    """Consumers that are asked only while the others leave room: all but the long ones it owns; who owns none, or is lent,
    the long ones. Empty where all are of one kind.
    """
    parts = parts_of(lease, work_tags, num_buckets, has_classes)
    tags = [tag for tag in lease.tags if is_long(tag, has_classes=has_classes)]
    long = {generation_consumer(work_tags, tag, bucket) for tag in tags for bucket in all_buckets(num_buckets)} & parts.keys()
    if len(long) in (0, len(parts)):
        return frozenset()
    nobodys = common_parts(lease, work_tags, num_buckets)
    own = {part for part in long - nobodys if parts[part] == OWNER_PRIORITY}
    return frozenset(parts.keys() - own - (long & nobodys) if own else long)


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
    """The same where late parts are asked only while early ones leave room unused: early ones get every free slot.

    granted: the credit that each part has. is_dry: whether early parts leave room, so that late ones get their share; else
    they get nothing new, and keep of that share what they were given: a pull that is open at the server cannot be taken back.
    Both may come at once, and then the last ones are handed back.
    """
    shares = credits_of(running, num_slots, owned)
    if sum(running.values()) >= num_slots:
        return shares
    kept = {part: shares[part] if is_dry else max(running[part], min(granted.get(part, 0), shares[part])) for part in late}
    early = {part: count for part, count in running.items() if part not in late}
    return {**kept, **credits_of(early, num_slots - sum(running[part] for part in late), owned)}


def with_room(
    shares: Mapping[str, int], running: Mapping[str, int], common: Collection[str], *, room: int, late: Container[str] = ()
) -> dict[str, int]:
    """The same where parts that begin new episodes get as much credit as there is room for those, in equal shares that are
    rounded up; one that is asked late no more than it has."""
    if not common:
        return dict(shares)
    each = -(-room // len(common))

    def of(part: str) -> int:
        welcome = running[part] + each
        return min(shares[part], welcome) if part in late else welcome

    return {**shares, **{part: of(part) for part in common}}


DRY_SECONDS = 0.05
"""Room that was offered for this long and not used is not needed: some tens of round trips."""
SURE_ROUND_TRIPS = 10
"""That fit into it on a slow network, or beside a busy engine. What waits in one part alone brings its share in each."""


@dataclass(slots=True)
class Turns:
    """Whether early parts leave room unused, so that it is the late ones' turn. Pure; times in seconds of one clock.

    Looked at in windows of ``DRY_SECONDS``, also while it is the late ones' turn: a burst that fills the room ends that, a
    trickle does not, however often it drips. Room is what is free when a window starts, less what late parts took since; never
    more than what ``SURE_ROUND_TRIPS`` bring of one part, for all that waits may be of one of them.
    """

    is_dry: bool = False
    _since: float | None = None
    _room: int = 0
    _count: int = 0

    def brought(self) -> None:
        """An early part brought something. As much as there was room for: it is their turn, and a new window starts."""
        self._count += 1
        if self._since is not None and self._count >= self._room:
            self.is_dry, self._since = False, None

    def asked(self, now: float, *, free: int, share: int) -> float | None:
        """Look again, with so many slots free. Returns when the next look is due. None: at the next change.

        share: of the free slots, what the early part that is asked for the fewest is asked for.
        """
        if free <= 0:  # nobody asks, so nothing can be concluded
            self._since = None
            return None
        self._room = min(self._room, self._count + free)
        if self._since is not None and now >= self._since + DRY_SECONDS:
            self.is_dry, self._since = True, None
        if self._since is None:
            self._since, self._room, self._count = now, min(free, SURE_ROUND_TRIPS * share), 0
        return self._since + DRY_SECONDS


@dataclass(slots=True)
class _Pull:
    subscription: Subscription
    priority: int
    num_running: int = 0
    credit: int = 0


class Pulls:
    """The standing pulls of one run. ``handler`` gets every delivery, and says in ``contexts`` what becomes of it."""

    def __init__(self, bus: Bus, run: str, handler: Handler, num_slots: int, contexts: Contexts | None = None) -> None:
        self._bus, self._run, self._handler, self._num_slots = bus, run, handler, num_slots
        self._contexts = contexts or Contexts(num_slots)
        self._common: frozenset[str] = frozenset()
        self.num_taken: Counter[int] = Counter()
        """Deliveries by the priority of the pull that brought them."""
        self._pulls: dict[str, _Pull] = {}
        self._leaving: dict[asyncio.Task[None], _Pull] = {}
        """A pull that was left takes slots until its last handler has ended, and its task with it."""
        self._is_open = False
        self._late: frozenset[str] = frozenset()
        self._turns = Turns()
        self._look: asyncio.TimerHandle | None = None

    async def open(
        self, parts: Mapping[str, int], late: frozenset[str] = frozenset(), common: frozenset[str] = frozenset()
    ) -> None:
        """Pull from exactly these consumers, each with its priority, from ``late`` ones while the others leave room, and from
        ``common`` ones as many as there is room for new episodes.

        What runs from others is finished, not handed back.
        """
        if late != self._late:
            self._late, self._turns = late, Turns()
        self._common = common
        for part in [part for part, pull in self._pulls.items() if parts.get(part) != pull.priority]:
            self._leave(self._pulls.pop(part))
        self._is_open = True
        for part in sorted(parts.keys() - self._pulls.keys()):
            await self._join(part, parts[part])
        self._share()

    def look(self) -> None:
        """There may be more room for new episodes."""
        if self._is_open:
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
                self._turns.brought()
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
        late = self._late & self._pulls.keys()
        is_dry = self._is_late_turn(running, late, num_slots - sum(running.values()), owned)
        granted = {part: pull.credit for part, pull in self._pulls.items()}
        shares = credits_in_turn(running, num_slots, owned, late=late, granted=granted, is_dry=is_dry)
        common = self._common & self._pulls.keys()
        shares = with_room(shares, running, common, room=self._room(running), late=frozenset() if is_dry else late)
        for part, pull in self._pulls.items():
            pull.credit = shares[part] if self._is_open else 0
            pull.subscription.set_credit(pull.credit)

    def _room(self, running: Mapping[str, int]) -> int:
        """For new episodes, those left out that were delivered and have not begun."""
        held = sum(running.values()) + sum(pull.num_running for pull in self._leaving.values())
        return max(0, self._contexts.room - max(0, held - self._contexts.num_running))

    def _is_late_turn(self, parts: Iterable[str], late: Container[str], free: int, owned: Container[str]) -> bool:
        """Whether late parts may be asked; it is looked at again in time."""
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if not self._late:
            return True
        loop = asyncio.get_running_loop()
        share = min(credits_of({part: 0 for part in parts if part not in late}, free, owned).values(), default=0)
        due = self._turns.asked(loop.time(), free=free if self._is_open else 0, share=share)
        if due is not None:
            self._look = loop.call_at(due, self._share)
        return self._turns.is_dry


# What a worker pulls: the tags of its lease; where episodes keep their weights version, those of versions it has.


log = structlog.get_logger()

RETRY_SECONDS = 1.0


class Intake:
    """The pulls of one run, as its newest lease and its versions say. ``keeping`` None: its episodes keep no version."""

    def __init__(self, pulls: Pulls, config: RunConfig, keeping: Keeping | None = None) -> None:
        self._pulls, self._config, self._keeping = pulls, config, keeping
        self._lease: Lease | None = None
        """None: nothing is pulled."""
        self.owned: dict[str, tuple[int, ...]] = {}
        """Affinity buckets of this worker, by work tag, as the newest lease says that it pulled under."""
        self._turn = asyncio.Lock()
        self._turning: asyncio.Task[None] | None = None

    @property
    def num_taken(self) -> Counter[int]:
        """Generations that were pulled, by the priority of the pull."""
        return self._pulls.num_taken

    async def open(self, lease: Lease) -> None:
        """Pull as a lease says: of its affinity buckets first of all nodes, of the others as a backup."""
        self._lease = lease
        await self._open()

    def turn(self) -> None:
        """Other versions are here, or are nowhere: pull accordingly, soon."""
        if self._turning is None or self._turning.done():
            self._turning = asyncio.create_task(self._open_soon())

    def look(self) -> None:
        """There may be more room for new episodes."""
        self._pulls.look()

    def pause(self) -> None:
        """Ask for nothing more; what is held is kept."""
        self._lease = None
        self._pulls.pause()

    async def leave(self) -> None:
        """Leave all consumers; waits for running handlers."""
        self._lease = None
        if self._turning is not None:
            self._turning.cancel()
            await asyncio.gather(self._turning, return_exceptions=True)
        await self._pulls.leave()

    async def _open(self) -> None:
        async with self._turn:
            while (lease := self._lease) is not None:
                tags = lease.tags if self._keeping is None else self._keeping.tags(lease.tags)
                mine = lease if tags == lease.tags else lease.model_copy(update={"tags": tags})
                run = self._config.work_tags, self._config.fleet.buckets, self._config.has_classes
                self.owned = owned_buckets(mine, *run[:2])
                await self._pulls.open(parts_of(mine, *run), late_parts(mine, *run), common_parts(mine, *run[:2]))
                if self._lease is None:  # paused meanwhile
                    self._pulls.pause()
                elif self._keeping is None or (self._lease == lease and self._keeping.tags(lease.tags) == tags):
                    return

    async def _open_soon(self) -> None:
        while True:
            try:
                await self._open()
                return
            except SeamlessFlowError as wrong:
                log.warning("pulls.delayed", reason=str(wrong), next_try_seconds=RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
