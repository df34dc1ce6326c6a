"""From deliveries to groups: open, check, hold, assemble; say at once which groups are dropped.

What is not wanted (a closed group's, a repeated attempt's) is acknowledged at once; everything else is held until its
group is closed, because after a crash the samples are delivered again and are all the trainer has.
Opening takes as long as the store does, so deliveries are placed out of order; the end of all samples is not: it waits
for what was delivered before it. A member that cannot be read or trained drops its group, which could never be complete.
A group is dropped by claim, and only then acknowledged: a trainer whose claim is no longer the newest closes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from seamlessflow.bus.base import PROGRESS_SECONDS, Delivery
from seamlessflow.checkpoints.commit_claim import CommitClaim
from seamlessflow.contracts import DropReason, Event, GroupDropped, SamplesReady, TrainingEndRequested
from seamlessflow.errors import BadInput, BusClosed, Superseded, Unavailable
from seamlessflow.runtime import Context

from .groups import GroupBook, check_samples

# Deliveries that are held for minutes or hours: one loop keeps them all alive.
#
# A task per delivery would be thousands of tasks; a delivery that comes again replaces the older handle of the same message.


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


log = structlog.get_logger()

RETRY_SECONDS = 1.0
UNREAD, END = "/unread", "/end"
"""Keys of deliveries that belong to no group; a group's id has no slash."""


class SampleQueue:
    """One run's deliveries. ``changed`` is set whenever something changed that the trainer may wait for."""

    def __init__(
        self, context: Context, claim: CommitClaim, run: str, book: GroupBook, *, group_size: int, vocab_size: int
    ) -> None:
        self._context, self._claim, self._run, self.book = context, claim, run, book
        self._group_size, self._vocab_size = group_size, vocab_size
        self.held = HeldDeliveries()
        self.changed = asyncio.Event()
        self.end: TrainingEndRequested | None = None
        self.stop_now = asyncio.Event()
        """Set with an ``end`` that does not want the rest trained: no further step begins."""
        self.over = False
        """True once the run's training ended: whatever comes now is only acknowledged."""
        self._unplaced: set[int] = set()
        """Queue sequences of deliveries that are being opened, or will come again to be."""
        self._last_request: tuple[int, TrainingEndRequested] | None = None
        """The sequence of an ``end`` that waits for earlier deliveries, and the request."""
        self.judged_rewards: list[tuple[str, float]] = []
        """Environment and reward of members whose group was dropped for zero variance, since last taken."""

    async def on_delivery(self, delivery: Delivery) -> None:
        """Returns as soon as the delivery is placed; it is ended later, when its group is."""
        try:
            await self._take_in(delivery)
        except Superseded as wrong:  # the training ends by that, and hands back what is held
            log.warning("samples.handed_back", subject=delivery.subject, reason=str(wrong))
            await delivery.nak(RETRY_SECONDS)

    async def _take_in(self, delivery: Delivery) -> None:
        self.held.hold(UNREAD, delivery)
        self._unplaced.add(delivery.seq)
        try:
            event = await self._context.handlers.open(delivery)
            if isinstance(event, SamplesReady):
                check_samples(event, group_size=self._group_size, vocab_size=self._vocab_size)
        except BadInput as wrong:
            self.held.forget(UNREAD, delivery)
            await self._dead_letter(delivery, str(wrong))
            self._placed(delivery)
        except Unavailable as wrong:
            self.held.forget(UNREAD, delivery)
            log.warning("samples.delayed", subject=delivery.subject, reason=str(wrong))
            await delivery.nak(RETRY_SECONDS)
        else:
            self.held.forget(UNREAD, delivery)
            await self._place(delivery, event)
            self._placed(delivery)

    async def _dead_letter(self, delivery: Delivery, reason: str) -> None:
        """The group first: killed in between, the delivery comes again and finds the group closed."""
        group = _group_of(delivery.subject)
        if group is not None and self.book.is_incomplete(group):
            await self.drop([group], DropReason.FAILED)
            self.changed.set()
        await self._context.handlers.dead_letter(delivery, reason)

    def _placed(self, delivery: Delivery) -> None:
        """One delivery less that an end may wait for."""
        self._unplaced.discard(delivery.seq)
        if self._last_request is not None and self._last_request[0] <= min(self._unplaced, default=self._last_request[0]):
            self.end = self._last_request[1]
            self._last_request = None
            self.changed.set()

    async def _place(self, delivery: Delivery, event: Event) -> None:
        if self.over:
            await delivery.ack()
        elif isinstance(event, TrainingEndRequested):
            self.held.hold(END, delivery)
            self._end(event, delivery.seq)
        elif isinstance(event, SamplesReady) and self.book.wants(event):
            self.held.hold(event.origin.group, delivery)
            await self._add(event)
        else:
            await delivery.ack()

    def _end(self, event: TrainingEndRequested, seq: int) -> None:
        if event.train_rest:
            self._last_request = (seq, event)
            return
        self.end = event
        self.stop_now.set()
        self.changed.set()

    async def _add(self, event: SamplesReady) -> None:
        judgement = self.book.add(event)
        if isinstance(judgement, DropReason):
            if judgement is DropReason.ZERO_VARIANCE:
                self.judged_rewards += self.book.rewards_of(event.origin.group)
            await self.drop([event.origin.group], judgement)
        self.changed.set()

    async def drop(self, groups: Iterable[str], reason: DropReason) -> None:
        """Publish the groups as dropped, then let go of their samples. Raises Superseded: neither was done."""
        for group in groups:
            await self._append(GroupDropped(run=self._run, group=group, reason=reason, nonce=self._claim.nonce))
            log.info("group.dropped", group=group, reason=reason.value)
            await self.close(group)

    async def _append(self, event: GroupDropped) -> None:
        """Until it is stored: the group was judged, and will not be judged again."""
        while True:
            try:
                await self._claim.append(event)
                return
            except BusClosed:
                raise
            except Unavailable as wrong:
                log.warning("drop.waits", group=event.group, reason=str(wrong), again_in_seconds=RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)

    async def close(self, group: str) -> None:
        """The group's end was said: acknowledge what is held of it."""
        self.book.close(group)
        await self.held.release(group)

    async def finish(self) -> None:
        """Training ended and that was said: acknowledge everything, now and from now on."""
        self.over = True
        for key in self.held.keys:
            await self.held.release(key)


def _group_of(subject: str) -> str | None:
    """The group of a SamplesReady that may be unreadable."""
    tokens = subject.split(".")
    return tokens[3] if tokens[2] == "sample" else None
