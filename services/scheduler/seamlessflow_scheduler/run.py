"""One run in the scheduler: folds its journal, consumes its queue and publishes its ``decisions.next_events``.

A handler only applies its event. The run's ``PacedPublisher`` publishes the consequences after the next tick, in slices, so
that thousands of openings delay no event and no lease. If publishing fails, the next tick publishes the rest. When the journal
holds a decision already (another scheduler led meanwhile, or this one died after publishing), this state is behind and the
journal is folded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from seamlessflow.bus.base import Subscription
from seamlessflow.checkpoints.commit_claim import CommitClaim, publish_rest
from seamlessflow.config.run import RunConfig
from seamlessflow.config.tag_rules import parse_rule
from seamlessflow.contracts import (
    BatchReady,
    EpisodeOpened,
    Event,
    GroupAdmitted,
    GroupDropped,
    ResumeRequested,
    RoleReleased,
    RoleTaken,
    RunEnded,
    RunHeld,
    RunStopRequested,
    SamplesReady,
    Service,
    StepTaken,
    TaskSubmitted,
    TrainerStarted,
    TrainingEnded,
    TrainingEndRequested,
)
from seamlessflow.contracts.routes import CONTROL_STREAM
from seamlessflow.contracts.streams import consumer_name, journal_stream, queue_stream, run_consumers, run_streams
from seamlessflow.contracts.subjects import message_id_of, subject_filter, subject_filters
from seamlessflow.errors import BadInput, MalformedMessage, Superseded, Unavailable
from seamlessflow.runtime import Context, GcControl

from .admission.decisions import Observation, closes, is_full, next_events
from .admission.measurements import MEASURED, RunMeasurements
from .admission.open_group import episode_id
from .admission.run_state import FOLDED, RunProgress
from .paced_publisher import FairLock, PacedPublisher
from .policy import Demand


def demand_of(config: RunConfig, progress: RunProgress, measurements: RunMeasurements) -> Demand:
    """What a run needs of the fleet, from its document, progress and measurements. Pure."""
    fleet, algorithm = config.fleet, config.algorithm
    return Demand(
        progress.run,
        fleet.policy,
        progress.wants_train,
        config.envs,
        fleet.shards,
        config.work_tags,
        fleet.buckets,
        has_classes=config.has_classes,
        version_slots=config.version_slots,
        tag_rules=tuple((rule.tag, parse_rule(rule.when)) for rule in fleet.tag_rules),
        needs={agent.env: agent.needs for agent in config.agents if agent.needs is not None},
        train_nodes=fleet.train_nodes,
        groups_per_step=algorithm.groups_per_step,
        groups_ready=progress.groups_ready,
        max_staleness=algorithm.max_staleness,
        rates=measurements.rates,
        settled_epochs=progress.settled_epochs,
    )


log = structlog.get_logger()

CREDIT = 64
CONSUMED = tuple(dict.fromkeys((*FOLDED, *MEASURED)))
ROLE_CHANGING = (BatchReady, StepTaken, RoleTaken, RoleReleased, TrainerStarted, TrainingEnded, RunHeld, ResumeRequested)
"""Events after which roles may change: leases first, then whatever else is due."""
SLICE = 32
"""Most events published before the decisions are made anew; fewer where an event handler waits for the lock."""


class ScheduledRun:
    """One run that this scheduler leads.

    wake: called after every event, so that the next tick follows at once. may_lead: whether this process certainly leads.
    """

    def __init__(
        self,
        context: Context,
        run: str,
        config: RunConfig,
        wake: Callable[[], None],
        may_lead: Callable[[], bool] = lambda: True,
    ) -> None:
        self.run, self.config = run, config
        self.progress = RunProgress(run, config)
        self.measurements = RunMeasurements(run, config)
        self.seen = Observation()
        self._context, self._wake, self._may_lead = context, wake, may_lead
        by = f"{Service.SCHEDULER.value} {context.settings.instance}"
        self._claim = CommitClaim(context.bus, context.journal, run, by)
        self._may_close = False
        """Our claim is the newest, and the state was folded after it."""
        self._lock, self._settling = FairLock(), GcControl()
        self._publisher: PacedPublisher | None = None
        self._opening = ""
        """The episode whose EpisodeOpened is being published; its echo may come before the server's answer."""
        self._insisted: set[str] = set()
        self._sampled: set[str] = set()
        self._subscription: Subscription | None = None
        self._trainer_left_at: float | None = None

    async def make(self) -> None:
        """Create the streams, queues and consumers of the run; existing ones stay as they are."""
        fleet = self.config.fleet
        for stream in run_streams(self.run, max_bytes=fleet.journal_bytes):
            await self._context.bus.ensure_stream(stream)
        consumers = run_consumers(
            self.run, envs=self.config.envs, shards=fleet.shards, tags=self.config.work_tags, buckets=fleet.buckets
        )
        for consumer in consumers:
            await self._context.bus.ensure_consumer(consumer)

    async def join(self) -> None:
        """Fold the journal and consume the queue; the first tick goes on where the journal stops."""
        await self.fold()
        table = dict.fromkeys(CONSUMED, self._on_event)
        queue, name = queue_stream(Service.SCHEDULER, self.run), consumer_name(Service.SCHEDULER)
        self._subscription = await self._context.handlers.consume(queue, name, table, credit=CREDIT, serial=True)
        self._publisher = PacedPublisher(self.run, self._lock, self._publish_slice, self._wake)

    async def leave(self) -> None:
        """Stop consuming and publishing, and free the run's state, as other objects may still refer to this one. Idempotent."""
        if self._publisher is not None:
            publisher, self._publisher = self._publisher, None
            await publisher.end()
        if self._subscription is not None:
            await self._subscription.leave()
            self._subscription = None
        self.progress, self.measurements = RunProgress(self.run, self.config), RunMeasurements(self.run, self.config)

    async def fold(self) -> None:
        """Rebuild the state from the journal, and read from CTL whether a stop was requested."""
        began = time.monotonic()
        progress, measurements, num_events = RunProgress(self.run, self.config), RunMeasurements(self.run, self.config), 0
        kinds = (kind for kind in CONSUMED if kind is not RunStopRequested)
        filters = dict.fromkeys(subject for kind in kinds for subject in subject_filters(kind, self.run))
        async for record in self._context.bus.read(journal_stream(self.run), filters=list(filters)):
            try:
                event = await self._context.journal.open(record)
            except MalformedMessage:
                continue  # the queue brings it too, and that one is dead-lettered
            if progress.apply(event, record.time):
                measurements.apply(event, record.time)
            self._settling.tick()
            num_events += 1
        stop = await self._context.bus.last(CONTROL_STREAM, subject_filter(RunStopRequested, run=self.run))
        if stop is not None:
            progress.apply(await self._context.journal.open(stop), stop.time)
        self.progress, self.measurements = progress, measurements
        log.info("run.folded", run=self.run, num_events=num_events, took_seconds=round(time.monotonic() - began, 3))

    async def stop(self, event: RunStopRequested) -> None:
        """Begin the orderly end."""
        await self._on_event(event)

    @property
    def num_pauses(self) -> int:
        """How often an event came that may change roles; for ``tick``."""
        return 0 if self._publisher is None else self._publisher.num_pauses

    def tick(self, seen: Observation, num_pauses: int) -> None:
        """Let due events be published. Returns at once, as there are other runs.

        seen: what was observed. num_pauses: as of the plan whose leases are written now.
        """
        if is_full(self.progress, seen) and not is_full(self.progress, self.seen):
            log.warning("admission.stopped", run=self.run, reason=self._full_text(), journal_bytes=seen.journal_bytes)
        self.seen = seen
        if self._publisher is not None:
            self._publisher.resume(num_pauses)

    def observe(self, *, journal_bytes: int, trainer_is_there: bool, now: float, patience_seconds: float) -> Observation:
        """Inputs to ``next_events`` that the journal lacks. A trainer that claimed the run and did not begin counts as away."""
        if trainer_is_there and not self.progress.is_joining:
            self._trainer_left_at = None
        elif self._trainer_left_at is None:
            self._trainer_left_at = now
        left_at = self._trainer_left_at
        return Observation(journal_bytes, trainer_gone=left_at is not None and now - left_at >= patience_seconds)

    @property
    def demand(self) -> Demand:
        """What the run needs of the fleet now."""
        return demand_of(self.config, self.progress, self.measurements)

    @property
    def waits(self) -> tuple[str, ...]:
        """What the run itself waits for, as text; the plan reports what it lacks of the fleet."""
        progress = self.progress
        reasons = [self._full_text()] if is_full(progress, self.seen) and progress.training_ended is None else []
        if progress.is_stopping and progress.training_ended is None:
            reasons.append("stopping: the trainer is to commit")
        if not (
            progress.admitted or progress.waiting or progress.tasks_ended or any(r.has_tasks for r in progress.rounds.values())
        ):
            reasons.append("no task was submitted yet")
        return tuple(reasons)

    async def _on_event(self, event: Any) -> Iterable[Event]:
        if self._is_echo(event):
            return ()
        async with self._lock:
            if isinstance(event, TaskSubmitted):
                self._judge(event)
            self._apply(event)
            if isinstance(event, ROLE_CHANGING) and self._publisher is not None:
                self._publisher.pause()
        self._wake()
        return ()

    def _is_echo(self, event: Event) -> bool:
        """Whether the event is an EpisodeOpened of our own: they come by the thousand and change nothing."""
        return isinstance(event, EpisodeOpened) and (not self.progress.owes(event.episode) or event.episode == self._opening)

    def _judge(self, task: TaskSubmitted) -> None:
        refusal = self.progress.refusal(task)
        if refusal is not None:
            raise BadInput(refusal)
        if task.evaluation is not None and not self.progress.holds_round(task.evaluation):
            log.info("task.ignored", run=self.run, task=task.task, reason=f"evaluation.{task.evaluation} is false")

    async def _publish_slice(self) -> bool:
        """Publish some of the due events, with the lock held. False: none is due now."""
        due = next_events(self.progress, self.seen, SLICE)
        for event in due:
            if isinstance(event, TrainingEndRequested) and event.train_rest and not await self._has_all_samples():
                return False
            if closes(event) and not self._may_close:
                await self._begin_closing()
                return True
            self._opening = event.episode if isinstance(event, EpisodeOpened) else ""
            if isinstance(event, GroupDropped | RunEnded):
                if not await self._close(event):
                    return True
                continue
            stored = await self._context.journal.publish(event)
            if (stored is None or stored.duplicate) and self._is_behind(event):
                log.info("run.behind", run=self.run, event=type(event).__name__)
                await self.fold()
                return True
            self._apply(event)
            if self._lock.has_waiters:
                return True
        return bool(due)

    async def _begin_closing(self) -> None:
        """Claim the run, so that no trainer commits from here on; publish earlier commits as trained and fold the journal anew.

        If that fails, the next slice tries it again under the same claim.
        """
        if not self._may_lead():
            raise Unavailable("another scheduler may lead by now: this one closes no run")
        if not self._claim.is_held:
            await self._claim.take(closes=True)
        await publish_rest(self._context.bus, self._context.journal, self.run)
        await self.fold()
        self._may_close = True

    async def _close(self, event: GroupDropped | RunEnded) -> bool:
        """Append a closing event under our claim. False: another scheduler closes the run, so decisions are made anew."""
        claimed = event.model_copy(update={"nonce": self._claim.nonce})
        try:
            await self._claim.append(claimed)
        except Superseded as wrong:
            log.warning("run.closed_by_another", run=self.run, reason=str(wrong))
            self._may_close = False
            return False
        self._apply(claimed)
        return True

    def _apply(self, event: Event) -> None:
        now = time.time()
        if self.progress.apply(event, now):
            self.measurements.apply(event, now)
        self._settling.tick()

    def _is_behind(self, event: Event) -> bool:
        """Whether an event that the journal held already is missing in our state, so that it must be folded again.

        Not for ends: there the runner or trainer was a moment faster. Not twice for one event, lest folding never stop.
        """
        known = message_id_of(event)
        if not isinstance(event, GroupAdmitted | EpisodeOpened) or known in self._insisted:
            return False
        self._insisted.add(known)
        return True

    async def _has_all_samples(self) -> bool:
        """Whether the journal holds the samples of every group that the last step may use, ahead of the next event."""
        used = self.progress.steps.in_step
        open_groups = [(n, g) for n, g in self.progress.groups.items() if g.evaluation is None and n not in used]
        for name, group in open_groups:
            for index, attempt in enumerate(group.attempts):
                episode = episode_id(name, index, attempt)
                if episode in self._sampled:
                    continue
                subject = subject_filter(SamplesReady, run=self.run, group=name, episode=episode)
                if await self._context.bus.first(journal_stream(self.run), subject) is None:
                    return False
                self._sampled.add(episode)
        return True

    def _full_text(self) -> str:
        return f"admission stopped: the journal is at 80 % of fleet.journal_bytes = {self.config.fleet.journal_bytes}"
