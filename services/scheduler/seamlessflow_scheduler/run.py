"""One run: its journal folded, its queue heard, and what ``rhythm.decide`` wants said, said.

An event is only taken in; what follows from it is said by the run's ``Voice`` after the next tick, in slices, so that thousands
of openings keep no event and no lease waiting. Should saying fail, the next tick says the rest. A decision that the journal
knew before (somebody else led meanwhile, or we died after saying it) means that this picture is behind: the journal is folded
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from seamlessflow.bus.base import Subscription
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
from seamlessflow.runtime import CommitClaim, Context, GcControl, publish_rest

from .admission.decisions import Observation, closes, decide, is_full
from .admission.measurements import MEASURED, Measures
from .admission.run_state import FOLDED, Progress, episode_id
from .paced_publisher import Turn, Voice
from .policy import Demand

# What a run wants of the fleet, from its document, how far it has come and what was measured of it. Pure.


def demand_of(config: RunConfig, progress: Progress, measures: Measures) -> Demand:
    """The same run document, journal and times give the same demand, whoever asks."""
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
        rates=measures.rates,
        settled_epochs=progress.settled_epochs,
    )


log = structlog.get_logger()

CREDIT = 64
HEARD = tuple(dict.fromkeys((*FOLDED, *MEASURED)))
MOVING = (BatchReady, StepTaken, RoleTaken, RoleReleased, TrainerStarted, TrainingEnded, RunHeld, ResumeRequested)
"""Events after which roles may change: leases first, then whatever else is due."""
SLICE = 32
"""Most that is said before everything is looked at anew; less where somebody waits for the turn."""


class Conductor:
    """``wake`` is called after every event, so that roles follow at once. ``may_lead``: whether we lead for certain."""

    def __init__(
        self,
        context: Context,
        run: str,
        config: RunConfig,
        wake: Callable[[], None],
        may_lead: Callable[[], bool] = lambda: True,
    ) -> None:
        self.run, self.config = run, config
        self.progress = Progress(run, config)
        self.measures = Measures(run, config)
        self.seen = Observation()
        self._context, self._wake, self._may_lead = context, wake, may_lead
        by = f"{Service.SCHEDULER.value} {context.settings.instance}"
        self._claim = CommitClaim(context.bus, context.journal, run, by)
        self._may_close = False
        """Our claim is the newest, and the picture is as of it."""
        self._turn, self._settling = Turn(), GcControl()
        self._voice: Voice | None = None
        self._opening = ""
        """The episode of which we say that it is opened; its echo may come before the server's answer."""
        self._insisted: set[str] = set()
        self._sampled: set[str] = set()
        self._subscription: Subscription | None = None
        self._trainer_left_at: float | None = None

    async def make(self) -> None:
        """Streams, queues and consumers of the run; those that exist stay as they are."""
        fleet = self.config.fleet
        for stream in run_streams(self.run, max_bytes=fleet.journal_bytes):
            await self._context.bus.ensure_stream(stream)
        consumers = run_consumers(
            self.run, envs=self.config.envs, shards=fleet.shards, tags=self.config.work_tags, buckets=fleet.buckets
        )
        for consumer in consumers:
            await self._context.bus.ensure_consumer(consumer)

    async def join(self) -> None:
        """Fold the journal and hear what comes; the first tick goes on where the journal stops."""
        await self.fold()
        table = dict.fromkeys(HEARD, self._on_event)
        queue, name = queue_stream(Service.SCHEDULER, self.run), consumer_name(Service.SCHEDULER)
        self._subscription = await self._context.handlers.consume(queue, name, table, credit=CREDIT, serial=True)
        self._voice = Voice(self.run, self._turn, self._say_slice, self._wake)

    async def leave(self) -> None:
        """Hear and say nothing more, and forget the run: whoever still refers to us keeps no picture of it. Idempotent."""
        if self._voice is not None:
            voice, self._voice = self._voice, None
            await voice.end()
        if self._subscription is not None:
            await self._subscription.leave()
            self._subscription = None
        self.progress, self.measures = Progress(self.run, self.config), Measures(self.run, self.config)

    async def fold(self) -> None:
        """Rebuild the picture from the journal, and from CTL whether a stop was asked for."""
        began = time.monotonic()
        progress, measures, num_events = Progress(self.run, self.config), Measures(self.run, self.config), 0
        kinds = (kind for kind in HEARD if kind is not RunStopRequested)
        filters = dict.fromkeys(subject for kind in kinds for subject in subject_filters(kind, self.run))
        async for record in self._context.bus.read(journal_stream(self.run), filters=list(filters)):
            try:
                event = await self._context.journal.open(record)
            except MalformedMessage:
                continue  # the queue brings it too, and that one is dead-lettered
            if progress.apply(event, record.time):
                measures.apply(event, record.time)
            self._settling.tick()
            num_events += 1
        stop = await self._context.bus.last(CONTROL_STREAM, subject_filter(RunStopRequested, run=self.run))
        if stop is not None:
            progress.apply(await self._context.journal.open(stop), stop.time)
        self.progress, self.measures = progress, measures
        log.info("run.folded", run=self.run, num_events=num_events, took_seconds=round(time.monotonic() - began, 3))

    async def stop(self, event: RunStopRequested) -> None:
        """Begin the orderly end."""
        await self._on_event(event)

    @property
    def num_pauses(self) -> int:
        """How often events came after which roles may change; for ``tick``."""
        return 0 if self._voice is None else self._voice.num_pauses

    def tick(self, seen: Observation, num_pauses: int) -> None:
        """Leases are written as was planned after so many pauses: let what is due be said, given what was observed.

        Waits for nobody: there are other runs.
        """
        if is_full(self.progress, seen) and not is_full(self.progress, self.seen):
            log.warning("admission.stopped", run=self.run, reason=self._full_words(), journal_bytes=seen.journal_bytes)
        self.seen = seen
        if self._voice is not None:
            self._voice.go(num_pauses)

    def observe(self, *, journal_bytes: int, trainer_is_there: bool, now: float, patience_seconds: float) -> Observation:
        """Inputs to ``decide`` that the journal lacks. A trainer that claimed the run and has not begun counts as away."""
        if trainer_is_there and not self.progress.is_joining:
            self._trainer_left_at = None
        elif self._trainer_left_at is None:
            self._trainer_left_at = now
        left_at = self._trainer_left_at
        return Observation(journal_bytes, trainer_gone=left_at is not None and now - left_at >= patience_seconds)

    @property
    def demand(self) -> Demand:
        """What the run wants of the fleet now."""
        return demand_of(self.config, self.progress, self.measures)

    @property
    def waits(self) -> tuple[str, ...]:
        """What the run itself waits for, in words; what it lacks of the fleet is said elsewhere."""
        progress = self.progress
        said = [self._full_words()] if is_full(progress, self.seen) and progress.training_ended is None else []
        if progress.is_stopping and progress.training_ended is None:
            said.append("stopping: the trainer is to commit")
        if not (
            progress.admitted or progress.waiting or progress.tasks_ended or any(r.has_tasks for r in progress.rounds.values())
        ):
            said.append("no task was submitted yet")
        return tuple(said)

    async def _on_event(self, event: Any) -> Iterable[Event]:
        if self._is_echo(event):
            return ()
        async with self._turn:
            if isinstance(event, TaskSubmitted):
                self._judge(event)
            self._take_in(event)
            if isinstance(event, MOVING) and self._voice is not None:
                self._voice.pause()
        self._wake()
        return ()

    def _is_echo(self, event: Event) -> bool:
        """Whether we said, or are saying, that this episode is opened: they come by the thousand and change nothing now."""
        return isinstance(event, EpisodeOpened) and (not self.progress.owes(event.episode) or event.episode == self._opening)

    def _judge(self, task: TaskSubmitted) -> None:
        refusal = self.progress.refusal(task)
        if refusal is not None:
            raise BadInput(refusal)
        if task.evaluation is not None and not self.progress.holds_round(task.evaluation):
            log.info("task.ignored", run=self.run, task=task.task, reason=f"evaluation.{task.evaluation} is false")

    async def _say_slice(self) -> bool:
        """Say some of what is due, with the turn held; False: nothing is, for now."""
        due = decide(self.progress, self.seen, SLICE)
        for event in due:
            if isinstance(event, TrainingEndRequested) and event.train_rest and not await self._samples_are_said():
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
            self._take_in(event)
            if self._turn.is_wanted:
                return True
        return bool(due)

    async def _begin_closing(self) -> None:
        """From here on no trainer commits. What one committed before is published as trained, and the journal folded anew.

        Where that fails it is due again, under the same claim.
        """
        if not self._may_lead():
            raise Unavailable("another scheduler may lead by now: this one closes no run")
        if not self._claim.is_held:
            await self._claim.take(closes=True)
        await publish_rest(self._context.bus, self._context.journal, self.run)
        await self.fold()
        self._may_close = True

    async def _close(self, event: GroupDropped | RunEnded) -> bool:
        """By our claim. False: another scheduler closes the run, so everything is looked at anew."""
        claimed = event.model_copy(update={"nonce": self._claim.nonce})
        try:
            await self._claim.append(claimed)
        except Superseded as wrong:
            log.warning("run.closed_by_another", run=self.run, reason=str(wrong))
            self._may_close = False
            return False
        self._take_in(claimed)
        return True

    def _take_in(self, event: Event) -> None:
        now = time.time()
        if self.progress.apply(event, now):
            self.measures.apply(event, now)
        self._settling.tick()

    def _is_behind(self, event: Event) -> bool:
        """Whether an event that existed already is news to us. Ends are not: the runner or trainer was a moment faster.

        Asked for the same event again after folding, the answer is no, so that nothing is folded for ever.
        """
        known = message_id_of(event)
        if not isinstance(event, GroupAdmitted | EpisodeOpened) or known in self._insisted:
            return False
        self._insisted.add(known)
        return True

    async def _samples_are_said(self) -> bool:
        """Whether the samples of every group that the last step may use precede what is said next."""
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

    def _full_words(self) -> str:
        return f"admission stopped: the journal is at 80 % of fleet.journal_bytes = {self.config.fleet.journal_bytes}"
