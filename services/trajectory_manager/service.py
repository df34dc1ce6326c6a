"""The service around the manager: joins the run that its lease names, folds the journal, then handles its shards' queue.

    lease ─▶ run document ─▶ model folder ─▶ fold ─▶ queue, one event after the other ─▶ said, hinted, acknowledged

A new lease for another run or other shards leaves the queue in order first. All state is the fold: a killed process loses
nothing, and what it had not acknowledged comes again. A run whose model has no usable tokenizer or template is asked to
end, saying why.
"""

from __future__ import annotations

import asyncio
import time
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
from seamlessflow.errors import BadInput
from seamlessflow.runtime import Context, HandlerTable, LeaseWatch, read_run, stop_run

from .manager import Manager, NotYet
from .reading import fetch_renderer, fold_shard, refold_episode
from .speaking import AnsweringInbox, AnsweringSpeaker

log = structlog.get_logger()

CREDIT = 256
"""Deliveries a shard holds at a time; they are judged one after the other and said side by side."""

Shards = tuple[str, tuple[str, ...]]
"""A run, and which of its shards we hold."""


class TrajectoryManager:
    """One process. Several may share a run, each with shards of its own."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._member_of: Shards | None = None
        self._task: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Serve until stopped, then leave in order. Raises what a run's service failed with."""
        self._failed = asyncio.get_running_loop().create_future()
        self._context.presence.update(state="waits for a lease")
        watch = LeaseWatch(self._context.bus, self._context.settings.node, self.on_lease)
        try:
            await self._context.until_stopped(watch.run(), _outcome(self._failed))
        finally:
            await self._leave()

    async def on_lease(self, lease: Lease) -> None:
        """Join, change or leave a run as the lease says; the same run and shards change nothing."""
        wanted = None if lease.run is None else (lease.run, tuple(sorted(lease.tags)))
        if wanted == self._member_of:
            return
        await self._leave()
        self._member_of = wanted
        if wanted is None:
            self._context.presence.update(state="waits for a run")
            return
        self._task = asyncio.create_task(self._serve(*wanted))
        self._task.add_done_callback(self._on_served)

    async def _leave(self) -> None:
        task, self._task, self._member_of = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _on_served(self, task: asyncio.Task[None]) -> None:
        failed = self._failed
        if not task.cancelled() and failed is not None and not failed.done() and (wrong := task.exception()):
            failed.set_exception(wrong)

    async def _serve(self, run: str, shards: tuple[str, ...]) -> None:
        """Until cancelled."""
        context = self._context
        try:
            context.presence.update(state=f"waits for run {run}")
            config = await read_run(context.speaker, run)
            context.presence.update(state=f"waits for the model of {run}")
            renderer = await fetch_renderer(context.store, run, config, context.settings.work_dir)
        except BadInput as wrong:
            await self._give_up(run, str(wrong))
            return
        manager = Manager(renderer, config.model.max_context_tokens)
        member = RunMember(context, manager)
        subscriptions: list[Subscription] = []
        try:
            for shard in shards:
                began = time.monotonic()
                num_events = await fold_shard(context.bus, context.speaker, run, shard, manager)
                log.info("shard.folded", run=run, shard=shard, num_events=num_events, wall_seconds=time.monotonic() - began)
                subscriptions.append(await member.consume(run, shard))
            context.presence.update(state=f"serves run {run}, shards {', '.join(shards)}")
            await asyncio.Event().wait()
        finally:
            # Shielded: a second cancellation must not strand deliveries.
            await asyncio.shield(asyncio.gather(*(subscription.leave() for subscription in subscriptions)))
            log.info("run.left", run=run, shards=shards)

    async def _give_up(self, run: str, reason: str) -> None:
        """We can never serve this run: ask for its orderly end, and wait for the lease that takes us out of it."""
        log.error("run.cannot_be_served", run=run, reason=reason)
        self._context.presence.update(state=f"failed: {reason}"[:300])
        await stop_run(self._context.speaker, Service.TRAJECTORY_MANAGER, run, reason)


class RunMember:
    """Handlers of one run."""

    def __init__(self, context: Context, manager: Manager) -> None:
        self._context, self._manager = context, manager
        self._speaker = AnsweringSpeaker(context.bus, context.store, manager.reply_of)
        self._inbox = AnsweringInbox(context.bus, self._speaker, context.store, Service.TRAJECTORY_MANAGER, manager.give_up)
        handler: Callable[[Event], Awaitable[list[Event]]] = self.on_event
        self.table: HandlerTable = dict.fromkeys((CallRequested, SegmentSampled, GenerationEnded, EpisodeEnded), handler)

    async def consume(self, run: str, shard: str) -> Subscription:
        """Handle a shard's queue in the order of delivery."""
        queue = queue_stream(Service.TRAJECTORY_MANAGER, run)
        part = consumer_name(Service.TRAJECTORY_MANAGER, shard)
        return await self._inbox.consume(queue, part, self.table, credit=CREDIT, serial=True)

    async def on_event(self, event: Event) -> list[Event]:
        """What an event leads to. Where older events are missing here, the episode's journal is read again first."""
        try:
            consequences = self._manager.apply(event)
        except NotYet as missing:
            log.debug("episode.refolded", reason=str(missing))
            await refold_episode(self._context.bus, self._speaker, event, self._manager)
            consequences = self._manager.apply(event)
        for consequence in consequences:
            self._note(consequence)
        return consequences

    def _note(self, event: Event) -> None:
        if isinstance(event, CallAnswered):
            usage = event.usage.model_dump() if event.usage is not None else {}
            error = event.error.code if event.error is not None else None
            log.debug("call.answered", episode=event.episode, call=event.call, error=error, **usage)
            return
        generation = getattr(event, "generation", "")
        call = self._manager.call(getattr(event, "episode", ""), generation)
        if call is not None and call.is_fork and call.answer is None:
            log.info("tree.forked", episode=call.request.episode, call=generation, prompt_tokens=call.prompt_tokens)


async def _outcome(failed: asyncio.Future[None]) -> None:
    await failed
