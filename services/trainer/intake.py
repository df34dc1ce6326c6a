"""From deliveries to groups: open, check, hold, assemble; say at once which groups are dropped.

What is not wanted (a closed group's, a repeated attempt's) is acknowledged at once; everything else is held until its
group is closed, because after a crash the samples are delivered again and are all the trainer has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from seamlessflow.bus.base import Delivery
from seamlessflow.contracts import DropReason, Event, GroupDropped, SamplesReady, TrainingEndRequested
from seamlessflow.errors import BadInput, Unavailable
from seamlessflow.runtime import Context

from .checking import check_samples
from .groups import GroupBook
from .held import HeldDeliveries

log = structlog.get_logger()

RETRY_SECONDS = 1.0
UNREAD, END = "/unread", "/end"
"""Keys of deliveries that belong to no group; a group's id has no slash."""


class Intake:
    """One run's deliveries. ``news`` is set whenever something changed that the trainer may wait for."""

    def __init__(self, context: Context, run: str, book: GroupBook, *, group_size: int, vocab_size: int) -> None:
        self._context, self._run, self.book = context, run, book
        self._group_size, self._vocab_size = group_size, vocab_size
        self.held = HeldDeliveries()
        self.news = asyncio.Event()
        self.end: TrainingEndRequested | None = None
        self.stop_now = asyncio.Event()
        """Set with an ``end`` that does not want the rest trained: no further step begins."""
        self.over = False
        """True once the run's training ended: whatever comes now is only acknowledged."""
        self.judged_rewards: list[tuple[str, float]] = []
        """Environment and reward of members whose group was dropped for zero variance, since last taken."""

    async def on_delivery(self, delivery: Delivery) -> None:
        """Returns as soon as the delivery is placed; it is ended later, when its group is."""
        self.held.hold(UNREAD, delivery)
        try:
            event = await self._context.inbox.open(delivery)
            if isinstance(event, SamplesReady):
                check_samples(event, group_size=self._group_size, vocab_size=self._vocab_size)
        except BadInput as wrong:
            self.held.forget(UNREAD, delivery)
            await self._context.inbox.bury(delivery, str(wrong))
        except Unavailable as wrong:
            self.held.forget(UNREAD, delivery)
            log.warning("samples.delayed", subject=delivery.subject, reason=str(wrong))
            await delivery.nak(RETRY_SECONDS)
        else:
            self.held.forget(UNREAD, delivery)
            await self._place(delivery, event)

    async def _place(self, delivery: Delivery, event: Event) -> None:
        if self.over:
            await delivery.ack()
        elif isinstance(event, TrainingEndRequested):
            self.held.hold(END, delivery)
            self._end(event)
        elif isinstance(event, SamplesReady) and self.book.wants(event):
            self.held.hold(event.origin.group, delivery)
            await self._add(event)
        else:
            await delivery.ack()

    def _end(self, event: TrainingEndRequested) -> None:
        self.end = event
        if not event.train_rest:
            self.stop_now.set()
        self.news.set()

    async def _add(self, event: SamplesReady) -> None:
        judgement = self.book.add(event)
        if isinstance(judgement, DropReason):
            if judgement is DropReason.ZERO_VARIANCE:
                self.judged_rewards += self.book.rewards_of(event.origin.group)
            await self.drop([event.origin.group], judgement)
        self.news.set()

    async def drop(self, groups: Iterable[str], reason: DropReason) -> None:
        """Say the groups dropped, then let go of their samples."""
        for group in groups:
            await self._context.speaker.say(GroupDropped(run=self._run, group=group, reason=reason))
            log.info("group.dropped", group=group, reason=reason.value)
            await self.close(group)

    async def close(self, group: str) -> None:
        """The group's end was said: acknowledge what is held of it."""
        self.book.close(group)
        await self.held.release(group)

    async def finish(self) -> None:
        """Training ended and that was said: acknowledge everything, now and from now on."""
        self.over = True
        for key in self.held.keys:
            await self.held.release(key)
