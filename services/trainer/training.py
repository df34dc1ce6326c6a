"""The trainer's life in one run, from joining to TrainingEnded.

    join ─▶ ┌ wait for a batch ─▶ BatchReady ─▶ wait for the device ─▶ learn ─▶ publish ─▶ StepTaken ─▶ checkpoint? ┐
            └──────────────────────────────────────────◀───────────────────────────────────────────────────────────┘
                    └─ all steps taken, or the end requested ─▶ last checkpoint ─▶ TrainingEnded
    cannot join ─▶ RunStopRequested, and TrainingEnded with what failed where an earlier line began

Waits for: samples (the intake's ``news``), the device (``DeviceTurn``), a store that is away. Everything in memory may be
lost at any line: committed steps are in a checkpoint, and the samples of all others are not acknowledged.
A batch that cannot be learned from (not finite, or from another line) stops the run with a reason; the weights stay as
they were before it.
"""

from __future__ import annotations

import asyncio
import threading
import time

import structlog

from seamlessflow.contracts import (
    BatchReady,
    DropReason,
    Service,
    StepsCommitted,
    StepTaken,
    TrainerStarted,
    TrainingEnded,
)
from seamlessflow.contracts.routes import consumer_name, queue_stream
from seamlessflow.errors import BadInput
from seamlessflow.run_config import RunConfig
from seamlessflow.runtime import Context, failure_words, read_run, stop_run

from .batches import TrainingBatch, is_stale, make_batch
from .commits import Commits
from .config import TrainerSettings
from .device_turn import DeviceTurn
from .groups import Group, GroupBook
from .intake import Intake
from .joining import Joined, join_run
from .learner import NotFinite, StepFigures, learning_rate_at
from .publishing import read_head
from .step_metrics import StepTimes, step_metrics
from .threads import in_thread

log = structlog.get_logger()

CREDIT = 100_000
"""Deliveries being opened at a time; opened ones are held beyond it."""


class Training:
    """One line of one run. ``run`` until cancelled; set ``abandon`` first, so that a step in progress gives up soon."""

    def __init__(self, context: Context, settings: TrainerSettings, run: str, device: DeviceTurn) -> None:
        self._context, self._settings, self.run_name, self._device = context, settings, run, device
        self.abandon = threading.Event()
        self._failure: str | None = None
        self._last_step_at = time.monotonic()

    async def run(self) -> None:
        """Join, train, end; then stay and acknowledge what still comes, until cancelled."""
        speaker = self._context.speaker
        self._say_state("waiting for the run to start")
        try:
            config = await read_run(speaker, self.run_name)
            if await speaker.first(TrainingEnded, self.run_name) is not None:
                log.info("training.over", run=self.run_name)
                return
            self._say_state(f"loading {config.model.name}")
            joined = await join_run(self._context, self.run_name, config, self._settings, self._device.epoch)
        except BadInput as wrong:
            await self._give_up(str(wrong))
            return
        await self._train(config, joined)

    async def _train(self, config: RunConfig, joined: Joined) -> None:
        self._config, self._joined, self._step = config, joined, joined.step
        self._last_step_at = time.monotonic()
        algorithm = config.algorithm
        book = GroupBook(
            group_size=algorithm.group_size,
            max_attempts=config.fleet.max_attempts,
            drop_zero_variance=algorithm.drop_zero_variance,
            closed=joined.closed,
        )
        self._intake = intake = Intake(
            self._context, self.run_name, book, group_size=algorithm.group_size, vocab_size=joined.learner.vocab_size
        )
        self._commits = Commits(
            joined.checkpoints,
            self._context.speaker,
            self.run_name,
            line=joined.line,
            keep=config.checkpoints.keep,
            committed_step=joined.step,
        )
        subscription = await self._context.bus.consume(
            queue_stream(Service.TRAINER, self.run_name), consumer_name(Service.TRAINER), intake.on_delivery, credit=CREDIT
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(intake.held.keep_alive())
                await self._take_steps(tasks)
                await self._end(tasks)
                await asyncio.Event().wait()
        finally:
            await subscription.leave()
            await intake.held.hand_back_all()

    async def _take_steps(self, tasks: asyncio.TaskGroup) -> None:
        while self._step < self._config.algorithm.steps and (groups := await self._next_groups()):
            if not await self._take_step(groups):
                continue
            if self._step % self._config.checkpoints.every_steps == 0 and self._step < self._config.algorithm.steps:
                await self._commits.begin(self._step, self._joined.learner, self._intake, tasks)

    async def _next_groups(self) -> list[Group]:
        """The groups of the next step, taken from the book; empty when there will be no further step."""
        self._say_state(f"waiting for groups for step {self._step + 1}")
        intake, wanted = self._intake, self._config.algorithm.groups_per_step
        while True:
            intake.news.clear()
            if intake.end is not None and (self._failure or not intake.end.train_rest):
                return []
            ready = [] if self._failure else await self._fresh()
            if len(ready) >= wanted or intake.end is not None:
                intake.book.take(ready[:wanted])
                return ready[:wanted]
            await intake.news.wait()

    async def _fresh(self) -> list[Group]:
        """Ready groups, after dropping those of which every token is too old."""
        bound, book = self._config.algorithm.max_staleness, self._intake.book
        try:
            stale = [g.group for g in book.ready if is_stale(g, self._joined.steps, self._step, max_staleness=bound)]
        except BadInput as wrong:
            await self._fail(str(wrong), [])
            return []
        await self._intake.drop(stale, DropReason.STALE)
        return book.ready

    async def _take_step(self, groups: list[Group]) -> bool:
        """False: the step did not happen, and its groups are as before."""
        step = self._step + 1
        try:
            version = self._joined.publisher.weights_version
            batch = make_batch(groups, self._joined.steps, self._step, version, self._config.algorithm)
            num_tokens = len(batch.ages)
            await self._context.speaker.say(
                BatchReady(run=self.run_name, step=step, line=self._joined.line, num_groups=len(groups), num_tokens=num_tokens)
            )
            self._say_state(f"waiting for the device for step {step}")
            async with self._device.held(self._intake.stop_now) as ours:
                if ours:
                    await self._learn(batch, step)
                else:
                    self._intake.book.put_back(groups)
            await in_thread(self._joined.publisher.collect)
            return ours
        except (BadInput, NotFinite, ValueError) as wrong:
            await self._fail(str(wrong), groups)
            return False

    async def _learn(self, batch: TrainingBatch, step: int) -> None:
        self._say_state(f"taking step {step}")
        algorithm, began = self._config.algorithm, time.monotonic()
        rate = learning_rate_at(step, algorithm)
        figures = await in_thread(self._joined.learner.train, batch, learning_rate=rate, should_stop=self.abandon.is_set)
        learned = time.monotonic()
        published = await self._joined.publisher.publish(self._joined.learner.weights(), step=step, epoch=self._device.epoch)
        self._step = step
        self._commits.add(batch, step)
        times = StepTimes(began - self._last_step_at, learned - began, time.monotonic() - learned)
        await self._say_step(batch, figures, times, rate, published.weights_version)
        self._last_step_at = time.monotonic()

    async def _say_step(
        self, batch: TrainingBatch, figures: StepFigures, times: StepTimes, learning_rate: float, weights_version: int
    ) -> None:
        dropped, self._intake.judged_rewards = self._intake.judged_rewards, []
        metrics = step_metrics(batch, figures, times, learning_rate=learning_rate, dropped_rewards=dropped)
        await self._context.speaker.say(
            StepTaken(
                run=self.run_name,
                step=self._step,
                line=self._joined.line,
                weights_version=weights_version,
                groups=tuple(group.group for group in batch.groups),
                metrics=metrics,
            )
        )
        shown = ("reward", "loss", "grad_norm", "logprob_gap", "trained_tokens", "seconds_wait", "seconds_train")
        log.info("step.taken", step=self._step, **{name: round(metrics[name], 4) for name in shown if name in metrics})

    async def _fail(self, reason: str, groups: list[Group]) -> None:
        self._failure = reason
        self._intake.book.put_back(groups)
        await self._stop_run(reason)

    async def _stop_run(self, reason: str) -> None:
        """We cannot go on, and trying again would end the same: ask for an orderly end, and say why."""
        log.error("training.failed", run=self.run_name, reason=reason)
        self._say_state(f"failed: {reason}")
        await stop_run(self._context.speaker, Service.TRAINER, self.run_name, reason)

    async def _give_up(self, reason: str) -> None:
        """This line cannot begin. What an earlier one committed stands, so that is where training ended."""
        await self._stop_run(reason)
        speaker = self._context.speaker
        if await speaker.last(TrainerStarted, self.run_name) is None:
            return  # the scheduler waits for no trainer that never began
        committed = await speaker.last(StepsCommitted, self.run_name)
        step = 0 if committed is None else committed.step
        head = await read_head(self._context.bus, self.run_name)
        version = 0 if head is None else head.weights_version
        failure = failure_words(Service.TRAINER, reason)
        await speaker.say(TrainingEnded(run=self.run_name, step=step, weights_version=version, failure=failure))
        log.info("training.ended", run=self.run_name, step=step, weights_version=version)

    async def _end(self, tasks: asyncio.TaskGroup) -> None:
        """Commit what is not committed, say that training ended, let go of all that is held."""
        await self._commits.settle()
        if self._commits.committed_step < self._step:
            await self._commits.begin(self._step, self._joined.learner, self._intake, tasks)
            await self._commits.settle()
        version = self._joined.publisher.weights_version
        await self._context.speaker.say(TrainingEnded(run=self.run_name, step=self._step, weights_version=version))
        await self._intake.drop(self._intake.book.held, DropReason.RUN_ENDED)
        await self._intake.finish()
        self._say_state("training ended")
        log.info("training.ended", run=self.run_name, step=self._step, weights_version=version)

    def _say_state(self, state: str) -> None:
        self._context.presence.update(state=f"{self.run_name}: {state}"[:300])
