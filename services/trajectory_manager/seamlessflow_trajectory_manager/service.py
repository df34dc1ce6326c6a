"""The service around the manager: does as its lease says, and handles the queues of its shards.

    lease ─▶ membership (run, model, fold) ─▶ queue, one event after the other ─▶ said, hinted, acknowledged

A new lease leaves what it no longer names in order, says so (the epoch in our presence: now others may be given it), and
joins what is new; other shards go on. All state is the fold: a killed process loses nothing, and what it had not
acknowledged comes again.

No two processes judge one shard's events, for each would miss what the other took. So a process judges only while it is
sure of its shards: its presence was renewed all the time, at intervals shorter than the scheduler waits before it gives
them to another, or its lease was read again since. One that stood still for longer may have lost and got back a shard
without knowing; its lease's epoch tells, and then it reads everything again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from seamlessflow.bus.base import Subscription
from seamlessflow.contracts import (
    CallAnswered,
    CallRequested,
    EpisodeEnded,
    Event,
    GenerationEnded,
    Lease,
    SegmentSampled,
    Service,
)
from seamlessflow.contracts.streams import consumer_name, queue_stream
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.runtime import Context, GcControl, HandlerTable, LeaseWatch
from seamlessflow.runtime.presence import HOLDER_SECONDS
from seamlessflow.telemetry import count

from .answer_publisher import AnsweringInbox, AnsweringSpeaker
from .rendering.text_deltas import Deltas
from .run import Membership, Tenure
from .run_reader import refold_episode
from .trajectory.manager import Manager, NotYet
from .tree_store import TreeShelf

log = structlog.get_logger()

CREDIT = 256
"""Deliveries a shard holds at a time; they are judged one after the other and said side by side."""
LARGE_TOKENS = 4096
"""Tokens of a tree from which on its samples are made in a thread: below, handing over takes longer than the work."""


class TrajectoryManager:
    """One process. Several may share a run, each with shards of its own."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._watch = LeaseWatch(context.bus, context.settings.node, self.on_lease)
        self._epoch = 0
        self._membership: Membership | None = None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Serve until stopped, then leave in order. Raises what a run's service failed with."""
        self._context.presence.every_seconds = HOLDER_SECONDS
        self._context.presence.update(state="waits for a lease")
        try:
            await self._context.until_stopped(self._watch.run(), _outcome(self._failed))
        finally:
            await self._leave()

    async def on_lease(self, lease: Lease) -> None:
        """Join, change or leave a run as the lease says; the same run and shards change nothing."""
        missed, self._epoch = lease.epoch > self._epoch + 1, lease.epoch
        if self._membership is not None and self._membership.run != lease.run:
            await self._leave()
        wanted = frozenset() if lease.run is None else frozenset(lease.tags)
        if self._membership is not None:
            # Between two leases that we saw a shard may have been another's.
            await self._membership.leave(self._membership.shards - (frozenset() if missed else wanted))
        self._context.presence.update(epoch=lease.epoch)
        if lease.run is None:
            self._context.presence.update(state="waits for a run")
            return
        if self._membership is None:
            self._membership = Membership(self._context, lease.run, self._consume, self._is_sure, self._failed)
        for shard in sorted(wanted - self._membership.shards):
            self._membership.join(shard)

    async def _leave(self) -> None:
        membership, self._membership = self._membership, None
        if membership is not None:
            await membership.end()
            log.info("run.left", run=membership.run)

    async def _consume(self, tenure: Tenure, manager: Manager, recent: list[Event]) -> Subscription:
        member = RunMember(self._context, manager, tenure.until_sure)
        subscription = await member.consume(tenure.run, tenure.shard)
        await member.republish(recent)
        return subscription

    def _is_sure(self) -> bool:
        """Whether this process may judge; see the module docstring. If not, that is seen to."""
        sure = self._watch.looked_at >= self._context.presence.unbroken_since
        if not sure:
            self._watch.look_soon()
        return sure


class RunMember:
    """Handlers of one run."""

    def __init__(self, context: Context, manager: Manager, until_sure: Callable[[], Awaitable[None]]) -> None:
        self._context, self._manager, self._until_sure = context, manager, until_sure
        self._shelf = TreeShelf(context.store)
        self._settling = GcControl()
        self._deltas = Deltas(manager.renderer, manager.terms_of)
        self._journal = AnsweringSpeaker(context.bus, context.store, manager.reply_of, self._deltas.answered)
        self._handlers = AnsweringInbox(context.bus, self._journal, context.store, Service.TRAJECTORY_MANAGER, manager.give_up)

    async def consume(self, run: str, shard: str) -> Subscription:
        """Handle a shard's queue in the order of delivery."""
        queue = queue_stream(Service.TRAJECTORY_MANAGER, run)
        part = consumer_name(Service.TRAJECTORY_MANAGER, shard)
        handler: Callable[[Event], Awaitable[list[Event]]] = self.on_event
        # Kept by the subscription alone: held here as well, it would be a cycle, which is settled and never collected.
        table: HandlerTable = dict.fromkeys((CallRequested, SegmentSampled, GenerationEnded, EpisodeEnded), handler)
        return await self._handlers.consume(queue, part, table, credit=CREDIT, serial=True, on_return=self.on_return)

    async def republish(self, events: list[Event]) -> None:
        """What a manager that died may not have said; else who waits for it waits until its deliveries come again."""
        try:
            for at in range(0, len(events), CREDIT):
                await asyncio.gather(*(self._journal.publish(event) for event in events[at : at + CREDIT]))
        except SeamlessFlowError as wrong:
            log.warning("answers.delayed", reason=str(wrong))

    async def on_return(self, event: Event) -> None:
        """An end whose delivery was lost: tokens behind it may be known already. The journal knows which stood before it."""
        await self._until_sure()
        if isinstance(event, EpisodeEnded) and not self._manager.has_ended(event.episode):
            await refold_episode(self._context.bus, self._journal, event, self._manager)

    async def on_event(self, event: Event) -> list[Event]:
        """What an event leads to. Where older events are missing here, the episode's journal is read again first."""
        await self._until_sure()
        try:
            consequences = await self._apply(event)
        except NotYet as missing:
            log.debug("episode.refolded", reason=str(missing))
            await refold_episode(self._context.bus, self._journal, event, self._manager)
            consequences = await self._apply(event)
        if isinstance(event, SegmentSampled):
            await self._show(event)
        for consequence in consequences:
            self._note(consequence)
        self._settling.tick()
        return consequences

    async def _apply(self, event: Event) -> list[Event]:
        """What an event leads to. Samples of a large tree are made in a thread; its episode's other events wait meanwhile."""
        ending = self._manager.ending(event) if isinstance(event, EpisodeEnded) else None
        if ending is None:
            consequences = self._manager.apply(event)
        else:
            is_large = ending.num_tokens > LARGE_TOKENS
            consequences = self._manager.close(ending, await asyncio.to_thread(ending.judge) if is_large else ending.judge())
        if isinstance(event, EpisodeEnded) and (tree := self._manager.finished_tree(event.episode)):
            self._shelf.put(event.run, event.episode, tree)
        return consequences

    async def _show(self, event: SegmentSampled) -> None:
        """To who reads along: at once, since these tokens are stored."""
        call = self._manager.call(event.episode, event.generation)
        if call is not None and (delta := self._deltas.after_segment(call)) is not None:
            await self._journal.hint_delta(delta, call.request.reply)

    def _note(self, event: Event) -> None:
        if isinstance(event, CallAnswered):
            usage = event.usage.model_dump() if event.usage is not None else {}
            error = event.error.code if event.error is not None else None
            log.debug("call.answered", episode=event.episode, call=event.call, error=error, **usage)
            return
        generation = getattr(event, "generation", "")
        call = self._manager.call(getattr(event, "episode", ""), generation)
        if call is not None and call.cause is not None and not call.is_answered:
            count("forks", call.cause)
            count("reprefilled_tokens", call.cause, call.reprefilled_tokens)
            log.info(
                "tree.forked",
                episode=call.request.episode,
                call=generation,
                cause=call.cause.value,
                parent=call.parent,
                prompt_tokens=call.prompt_tokens,
                reprefilled_tokens=call.reprefilled_tokens,
            )


async def _outcome(failed: asyncio.Future[None]) -> None:
    await failed
