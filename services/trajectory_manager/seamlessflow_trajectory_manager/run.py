"""Membership in one run: its model, and the shards that the lease gives us, each on its own.

    run document ─▶ model folder ─▶ for each shard: fold ─▶ queue

A shard is joined and left without the others noticing; its trees are a ``Manager`` of its own, and go with it. Shards are
folded one after the other, so that the first is served while the next is read. A run whose model cannot be used is asked
to end, saying why.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import structlog

from seamlessflow.bus.base import Subscription
from seamlessflow.contracts import Event, Service
from seamlessflow.errors import BadInput, Unavailable
from seamlessflow.runtime import Context, read_run, stop_run

from .run_reader import fetch_renderer, fold_shard
from .trajectory.manager import Manager

log = structlog.get_logger()

SURE_POLL_SECONDS = 0.05


class Tenure:
    """A shard from joining to leaving. ``is_sure``: whether nobody else can have it."""

    def __init__(self, run: str, shard: str, is_sure: Callable[[], bool]) -> None:
        self.run, self.shard, self.has_ended = run, shard, False
        self._is_sure = is_sure

    async def until_sure(self) -> None:
        """Returns when its events may be judged here. Raises Unavailable when it is left before that."""
        while not self._is_sure():
            if self.has_ended:
                raise Unavailable(f"shard {self.shard} is left, and may be another's already")
            await asyncio.sleep(SURE_POLL_SECONDS)


Consume = Callable[[Tenure, Manager, list[Event]], Awaitable[Subscription]]
"""Begin to handle a shard's queue with the manager of its trees, and say what its newest events lead to."""


class Membership:
    """``failed`` gets what ended the serving of a shard, other than leaving it."""

    def __init__(
        self, context: Context, run: str, consume: Consume, is_sure: Callable[[], bool], failed: asyncio.Future[None]
    ) -> None:
        self.run = run
        self._context, self._consume, self._is_sure, self._failed = context, consume, is_sure, failed
        self._new_manager: asyncio.Task[Callable[[], Manager] | None] = asyncio.create_task(self._fetch_model())
        self._new_manager.add_done_callback(self._on_done)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._served: set[str] = set()
        self._folding = asyncio.Lock()

    @property
    def shards(self) -> frozenset[str]:
        """Those that are served, or on the way to it."""
        return frozenset(self._tasks)

    def join(self, shard: str) -> None:
        """Begin to serve a shard; returns at once."""
        task = self._tasks[shard] = asyncio.create_task(self._serve(shard))
        task.add_done_callback(self._on_done)

    async def leave(self, shards: Iterable[str]) -> None:
        """Stop serving these; returns when the last of their handlers has ended."""
        tasks = [self._tasks.pop(shard) for shard in shards]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks and self._new_manager.done():
            self._say_state()

    async def end(self) -> None:
        """Leave all shards, and give up waiting for the model."""
        await self.leave(self.shards)
        self._context.presence.update(run=None)
        self._new_manager.cancel()
        await asyncio.gather(self._new_manager, return_exceptions=True)

    async def _fetch_model(self) -> Callable[[], Manager] | None:
        """What makes a manager for this run's model. None: the model cannot be used, and the run was asked to end."""
        context, run = self._context, self.run
        try:
            context.presence.update(state=f"waits for run {run}")
            config = await read_run(context.journal, run)
            context.presence.update(state=f"waits for the model of {run}")
            renderer = await fetch_renderer(context.bus, context.store, run, config, context.settings.work_dir)
        except BadInput as wrong:
            await self._give_up(str(wrong))
            return None
        context.presence.update(run=run)
        return lambda: Manager(renderer, config.model.max_context_tokens, config.sampling.history)

    async def _serve(self, shard: str) -> None:
        """Until cancelled. The model is waited for by all shards together."""
        new_manager = await asyncio.shield(self._new_manager)
        if new_manager is None:
            return
        manager = new_manager()
        try:
            await self._serve_with(manager, shard)
        finally:
            manager.drop()  # whoever may still refer to it: the collector does not look for what has been here for long

    async def _serve_with(self, manager: Manager, shard: str) -> None:
        context = self._context
        async with self._folding:
            began = time.monotonic()
            folded = await fold_shard(context.bus, context.journal, self.run, shard, manager)
            took = round(time.monotonic() - began, 3)
            log.info("shard.folded", run=self.run, shard=shard, num_events=folded.num_events, wall_seconds=took)
        tenure = Tenure(self.run, shard, self._is_sure)
        joining = asyncio.ensure_future(self._consume(tenure, manager, folded.recent))
        try:
            await asyncio.shield(joining)
            self._served.add(shard)
            self._say_state()
            await asyncio.Event().wait()
        finally:
            self._served.discard(shard)
            tenure.has_ended = True
            # Shielded: a second cancellation must not strand deliveries.
            await asyncio.shield(asyncio.create_task(_leave_queue(joining)))
            log.info("shard.left", run=self.run, shard=shard)

    async def _give_up(self, reason: str) -> None:
        """We can never serve this run: ask for its orderly end, and wait for the lease that takes us out of it."""
        log.error("run.cannot_be_served", run=self.run, reason=reason)
        self._context.presence.update(state=f"failed: {reason}"[:300])
        await stop_run(self._context.journal, Service.TRAJECTORY_MANAGER, self.run, reason)

    def _say_state(self) -> None:
        shards = ", ".join(sorted(self._served)) or "none"
        self._context.presence.update(state=f"serves run {self.run}, shards {shards}"[:300])

    def _on_done(self, task: asyncio.Task[object]) -> None:
        if not task.cancelled() and (wrong := task.exception()) and not self._failed.done():
            self._failed.set_exception(wrong)


async def _leave_queue(joining: asyncio.Future[Subscription]) -> None:
    await (await joining).leave()
