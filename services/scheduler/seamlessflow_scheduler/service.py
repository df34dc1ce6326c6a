"""The scheduler: wins leadership, takes up the runs that have not ended, and ticks.

loop          consumes              publishes                       unblocked by
control       QCTL                  RunStarted, streams, consumers  a request or a stop
one per run   QSCHEDULER_<run>      decisions.next_events           every event of the run
tick          NODES, ORDERS, all    leases, RoleAssigned, RUNS      any event, or tick_seconds
              progress
renewal       its own key           –                               time
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress

import structlog

from seamlessflow.bus.base import Bus, ConsumerSpec
from seamlessflow.codec import pack_record, unpack_record
from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import Event, Role, RunPhase, RunRequested, RunStarted, RunState, RunStopRequested
from seamlessflow.contracts.routes import BUCKETS, CONTROL_CONSUMER, CONTROL_QUEUE, CONTROL_STREAM, QUEUE_OF, RUNS_BUCKET
from seamlessflow.contracts.streams import control_streams, journal_stream, queue_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import BadInput, BusClosed, ConfigError, SeamlessFlowError, SequenceMismatch, Unavailable
from seamlessflow.runtime import Context, HandlerTable

from .admission.run_state import holding
from .config import SchedulerSettings
from .fleet_monitor import FleetMonitor
from .leadership import Leadership
from .leases import LeaseBook
from .placement.plan import FleetPlan, next_plan
from .policy import Node, policy_of
from .policy.base import TRAIN
from .run import ScheduledRun

log = structlog.get_logger()

RETRY_SECONDS = 5.0


class QueueCleanup:
    """Deletes the queues of ended runs, one task per run, retried until it succeeds. Journals stay.

    After a crash the next scheduler begins again at its start.
    """

    def __init__(self, bus: Bus, grace_seconds: float) -> None:
        self._bus, self._grace_seconds = bus, grace_seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, run: str, scheduled_run: ScheduledRun | None) -> None:
        """Start deleting. ``scheduled_run``: of a run that ended just now; it leaves its queue first."""
        task = asyncio.create_task(self._clear(run, scheduled_run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def give_up(self) -> None:
        """Cancel all tasks, done or not."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _clear(self, run: str, scheduled_run: ScheduledRun | None) -> None:
        await asyncio.sleep(self._grace_seconds)  # so that all services see the end first
        while True:
            try:
                if scheduled_run is not None:
                    await scheduled_run.leave()
                for service in QUEUE_OF:
                    await self._bus.delete_stream(queue_stream(service, run))
            except SeamlessFlowError as wrong:
                log.warning("run.queues_not_deleted", run=run, reason=str(wrong), again_in_seconds=RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                log.info("run.queues_deleted", run=run)
                return


GO_ON_SECONDS = 5.0
RUN_TICK_SECONDS = 2.0
"""How long a tick waits for one run's journal."""
LEASES_SECONDS = 3.0
"""How often all leases are read again."""


class Scheduler:
    """One process of the service. It leads, or waits until it may."""

    def __init__(self, context: Context, settings: SchedulerSettings) -> None:
        self._context, self._settings = context, settings
        self._leadership = Leadership(context.bus, context.settings.instance, settings.leader_ttl_seconds)
        self._book = LeaseBook(context.bus, context.journal)
        self._monitor = FleetMonitor(context, settings)
        self._scheduled_runs: dict[str, ScheduledRun] = {}
        self._taking_up: dict[str, asyncio.Task[None]] = {}
        """Runs that an earlier leader began and whose journal did not answer."""
        self._states: dict[str, RunState] = {}
        self._cleanup = QueueCleanup(context.bus, settings.queue_grace_seconds)
        self._woken = asyncio.Event()
        self._observed_at = self._leases_read_at = 0.0

    async def run(self) -> None:
        """Follow, then lead, until a stop is requested."""
        await self._ensure_control()
        self._context.presence.update(state="follows: another scheduler leads")
        await self._context.until_stopped(self._lead())

    async def _lead(self) -> None:
        await self._leadership.win()
        self._context.presence.update(state="leads")
        keep = asyncio.create_task(self._leadership.keep())
        work = asyncio.create_task(self._work())
        try:
            done, _ = await asyncio.wait([keep, work], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (keep, work):
                task.cancel()
            await asyncio.gather(keep, work, return_exceptions=True)
            await self._cleanup.give_up()
            taking_up = [*self._taking_up.values()]
            for task in taking_up:
                task.cancel()
            await asyncio.gather(*taking_up, return_exceptions=True)
            for scheduled_run in self._scheduled_runs.values():
                await scheduled_run.leave()
            await self._book.end()
            await self._leadership.resign()

    async def _work(self) -> None:
        await self._take_up()
        control: HandlerTable = {RunRequested: self._on_run_requested, RunStopRequested: self._on_run_stop_requested}
        subscription = await self._context.handlers.consume(CONTROL_QUEUE, CONTROL_CONSUMER, control, credit=8, serial=True)
        try:
            while True:
                await self._tick_safely()
                with suppress(TimeoutError):
                    # Not wait_for: before Python 3.12 it swallows a cancellation that meets the event.
                    async with asyncio.timeout(self._settings.tick_seconds):
                        await self._woken.wait()
                self._woken.clear()
        finally:
            await subscription.leave()

    async def _ensure_control(self) -> None:
        """Create the permanent streams and the buckets; where permissions are on, only the scheduler may create them."""
        for stream in control_streams():
            await self._context.bus.ensure_stream(stream)
        for bucket in BUCKETS:
            await self._context.bus.kv(bucket)
        await self._context.bus.ensure_consumer(ConsumerSpec(CONTROL_QUEUE, CONTROL_CONSUMER, filters=(">",)))

    async def _take_up(self) -> None:
        """Go on with everything that an earlier leader began."""
        now = time.time()
        await self._book.load(now)
        await self._observe_nodes(now)
        self._monitor.fleet.remember({name: held.lease for name, held in self._book.leases.items()}, now)
        for entry in await (await self._context.bus.kv(RUNS_BUCKET)).entries():
            self._states[entry.key] = unpack_record(RunState, entry.value)
        names = set(await self._context.bus.stream_names())
        going_on = []
        for run, state in self._states.items():
            if state.phase is RunPhase.ENDED and any(queue_stream(service, run) in names for service in QUEUE_OF):
                self._cleanup.begin(run, None)
            if state.phase in (RunPhase.QUEUED, RunPhase.RUNNING, RunPhase.HELD) and journal_stream(run) in names:
                going_on.append(self._go_on_or_later(run))
        await asyncio.gather(*going_on)

    async def _go_on_or_later(self, run: str) -> None:
        """A run whose journal does not answer ends no other one: it is tried again, beside them."""
        if not await self._has_gone_on(run):
            self._taking_up[run] = asyncio.create_task(self._go_on_later(run))

    async def _go_on_later(self, run: str) -> None:
        while True:
            await asyncio.sleep(GO_ON_SECONDS)
            if await self._has_gone_on(run):
                break
        del self._taking_up[run]
        self._woken.set()

    async def _has_gone_on(self, run: str) -> bool:
        try:
            started = await self._context.journal.first(RunStarted, run)
            if started is not None:  # else RunRequested was not acknowledged and comes again
                await self._go_on(run, started.document)
        except BusClosed:
            raise
        except Unavailable as wrong:
            log.warning("run.cannot_go_on_yet", run=run, reason=str(wrong), next_try_seconds=GO_ON_SECONDS)
            return False
        return True

    async def _go_on(self, run: str, document: dict[str, object]) -> None:
        try:
            await self._begin(run, document)
        except ConfigError as wrong:  # made by another version of us; the other runs go on
            log.error("run.cannot_go_on", run=run, reason=str(wrong))
            await self._set_state(run, self._states[run].model_copy(update={"reason": f"cannot go on: {wrong}"}))
        else:
            await self._book.republish(run)

    async def _on_run_requested(self, event: RunRequested) -> Iterable[Event]:
        state = self._states.get(event.run)
        if event.run in self._scheduled_runs or (state is not None and state.phase in (RunPhase.ENDED, RunPhase.REFUSED)):
            return ()
        if event.run in self._taking_up:
            raise Unavailable(f"the journal of run {event.run} does not answer; its request waits")
        requested_at = state.requested_at if state is not None else time.time()
        try:
            policy_of(parse_run_config(event.document, source=f"document of run {event.run}").fleet.policy)
            await self._set_state(event.run, RunState(phase=RunPhase.QUEUED, requested_at=requested_at))
            await self._begin(event.run, event.document)
        except ConfigError as wrong:
            await self._set_state(event.run, RunState(phase=RunPhase.REFUSED, reason=str(wrong), requested_at=requested_at))
            raise
        self._woken.set()
        return ()

    async def _begin(self, run: str, document: dict[str, object]) -> None:
        """Create the run's streams, publish RunStarted and consume the run's queue."""
        config = parse_run_config(document, source=f"document of run {run}")
        policy_of(config.fleet.policy)
        scheduled_run = ScheduledRun(self._context, run, config, self._woken.set, lambda: self._leadership.is_certain)
        await scheduled_run.make()
        await self._context.journal.publish(RunStarted(run=run, document=document))
        await scheduled_run.join()
        self._scheduled_runs[run] = scheduled_run
        log.info("run.begun", run=run, policy=config.fleet.policy, envs=config.envs)

    async def _on_run_stop_requested(self, event: RunStopRequested) -> Iterable[Event]:
        scheduled_run = self._scheduled_runs.get(event.run)
        if scheduled_run is not None:
            await scheduled_run.stop(event)
        elif event.run not in self._states:
            requested = await self._context.bus.first(CONTROL_STREAM, subject_filter(RunRequested, run=event.run))
            if requested is None:
                raise BadInput(f"run {event.run} was never requested, so it cannot be stopped")
            raise Unavailable(f"run {event.run} is requested and not begun; its stop waits")
        return ()

    async def _tick_safely(self) -> None:
        """A peer that is away delays a tick; only a closed bus, or our own mistake, ends the process."""
        try:
            await self._tick()
        except BusClosed:
            raise
        except SequenceMismatch as wrong:
            log.warning("lease.refused", reason=str(wrong))
            await self._book.load(time.time())
        except SeamlessFlowError as wrong:
            log.warning("tick.delayed", reason=str(wrong))

    async def _tick(self) -> None:
        now = time.time()
        if not 0 <= now - self._observed_at < self._settings.tick_seconds:  # events come by the hundred a second, nodes do not
            await self._observe_nodes(now)
            now = time.time()  # events that came while nodes were read do not lie in the future
        known = {run: scheduled_run.num_pauses for run, scheduled_run in self._scheduled_runs.items()}
        plan = self._plan(now)
        await self._write_leases(plan, now)  # first: a device that waits costs more than an episode that is not open yet
        scheduled_runs = [
            self._scheduled_runs[run] for run in known if run in self._scheduled_runs
        ]  # others: with the next plan
        await asyncio.gather(
            *(self._tick_run_safely(scheduled_run, now, known[scheduled_run.run]) for scheduled_run in scheduled_runs)
        )
        await self._publish_states(plan)

    async def _write_leases(self, plan: FleetPlan, now: float) -> None:
        for assignment in plan.changes:
            if not self._leadership.is_certain:
                raise Unavailable("its key was not renewed in time, so another scheduler may lead: no lease is written")
            await self._book.write(assignment, now)
        if any(
            change.role is Role.SERVE for change in plan.changes
        ):  # shards taken are given once nodes are read again: let it be now
            self._observed_at = 0.0
            self._woken.set()

    async def _observe_nodes(self, now: float) -> None:
        await self._monitor.read(now)
        self._observed_at = now
        if not 0 <= now - self._leases_read_at < LEASES_SECONDS:  # an earlier leader may have written after we read
            await self._book.load(now)
            self._leases_read_at = now

    async def _tick_run_safely(self, scheduled_run: ScheduledRun, now: float, num_pauses: int) -> None:
        """A run whose journal does not answer delays no other run."""
        try:
            async with asyncio.timeout(RUN_TICK_SECONDS):
                await self._tick_run(scheduled_run, now, num_pauses)
        except (BusClosed, SequenceMismatch):
            raise
        except (SeamlessFlowError, TimeoutError) as wrong:
            log.warning("run.delayed", run=scheduled_run.run, reason=str(wrong) or f"no answer within {RUN_TICK_SECONDS:g} s")

    async def _tick_run(self, scheduled_run: ScheduledRun, now: float, num_pauses: int) -> None:
        limit = scheduled_run.config.fleet.journal_bytes
        journal_bytes = await self._context.bus.stream_bytes(journal_stream(scheduled_run.run)) if limit > 0 else 0
        trainer_is_there = any(
            node.can(TRAIN) for node in self._nodes() if node.lease is not None and node.lease.run == scheduled_run.run
        )
        patience = self._settings.trainer_away_seconds
        seen = scheduled_run.observe(
            journal_bytes=journal_bytes, trainer_is_there=trainer_is_there, now=now, patience_seconds=patience
        )
        scheduled_run.tick(seen, num_pauses)
        ended = scheduled_run.progress.ended
        if ended is not None:
            await self._record_end(scheduled_run.run, ended.reason)  # first: it may fail, and then the next tick does it
            del self._scheduled_runs[scheduled_run.run]
            self._cleanup.begin(scheduled_run.run, scheduled_run)
            self._woken.set()  # its nodes are free
            log.info("run.ended", run=scheduled_run.run, reason=ended.reason, steps=ended.steps)

    async def _record_end(self, run: str, reason: str) -> None:
        await self._set_state(run, self._states[run].model_copy(update={"phase": RunPhase.ENDED, "reason": reason}))

    def _nodes(self) -> list[Node]:
        held = holding(scheduled_run.progress for scheduled_run in self._scheduled_runs.values())
        return self._monitor.fleet.nodes(self._book.leases, held)

    def _plan(self, now: float) -> FleetPlan:
        nodes = self._nodes()
        self._monitor.warn_of(nodes)
        going_on = [run for run, scheduled_run in self._scheduled_runs.items() if not scheduled_run.progress.is_held]
        runs = sorted(going_on, key=lambda run: (self._states[run].requested_at, run))
        held = frozenset(self._scheduled_runs.keys() - set(runs))
        return next_plan(nodes, self._book.leases, [self._scheduled_runs[run].demand for run in runs], now, held=held)

    async def _publish_states(self, plan: FleetPlan) -> None:
        """Publish what each run does and waits for: in RUNS, in the log and in our presence."""
        texts = []
        for run, scheduled_run in self._scheduled_runs.items():
            held, state = scheduled_run.progress.history.held, self._states[run]
            lacks = plan.waits.get(run)
            if held is not None:
                phase, waits = RunPhase.HELD, held.reason
            elif lacks is None:  # it began after the plan was made, and is part of the next one
                continue
            else:
                waits = "; ".join((*lacks, *scheduled_run.waits))
                phase = RunPhase.QUEUED if lacks and state.phase is RunPhase.QUEUED else RunPhase.RUNNING
            if (phase, waits) != (state.phase, state.reason):
                log.info("run.waits" if waits else "run.goes_on", run=run, phase=phase.value, reason=waits)
                await self._set_state(run, state.model_copy(update={"phase": phase, "reason": waits}))
            texts.append(
                f"{run}: {phase.value}, step {scheduled_run.progress.steps.step}" + (f", waits: {waits}" if waits else "")
            )
        self._announce("leads; " + (" | ".join(texts) or "no run"))

    def _announce(self, state: str) -> None:
        if self._context.presence.status.state != state:
            self._context.presence.update(state=state)

    async def _set_state(self, run: str, state: RunState) -> None:
        await (await self._context.bus.kv(RUNS_BUCKET)).put(run, pack_record(state))
        self._states[run] = state
