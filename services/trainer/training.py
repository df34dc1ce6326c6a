"""The trainer's life in one run, from joining to TrainingEnded.

    join ─▶ ┌ wait for a batch ─▶ BatchReady ─▶ wait for the device ─▶ learn ─▶ publish ─▶ StepTaken ─▶ checkpoint? ┐
            └──────────────────────────────────────────◀───────────────────────────────────────────────────────────┘
                    ├─ all steps taken, or the end requested ─▶ last checkpoint ─▶ TrainingEnded
                    ├─ a later line began in the name of our node (``living``) ─▶ gone, with an error
                    └─ asked to leave (SIGTERM) ─▶ a checkpoint of what was taken since the last one ─▶ gone
    cannot join ─▶ RunStopRequested, and TrainingEnded with what failed where an earlier line began

Waits for: samples (the intake's ``news``), the device (``DeviceTurn``), a store that is away. Everything in memory may be
lost at any line: committed steps are in a checkpoint, and the samples of all others are not acknowledged.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from seamlessflow.contracts import DropReason, Service, TrainerStarted, TrainingEnded
from seamlessflow.contracts.streams import consumer_name, queue_stream
from seamlessflow.errors import BadInput
from seamlessflow.run_config import RunConfig
from seamlessflow.runtime import Context, read_run

from .building import BuildLearner
from .commits import Commits
from .config import TrainerSettings
from .device_turn import DeviceTurn
from .groups import GroupBook
from .intake import Intake
from .joining import Joined, join_run
from .living import Superseded, until_superseded
from .saying import cannot_begin, say_state
from .standing import step_to_keep
from .stepping import Stepping

log = structlog.get_logger()

CREDIT = 100_000
"""Deliveries being opened at a time; opened ones are held beyond it."""


@dataclass(frozen=True, slots=True)
class _Line:
    """What a line that began is made of."""

    joined: Joined
    intake: Intake
    commits: Commits
    stepping: Stepping


class Training:
    """One line of one run. ``run`` until cancelled (``give_up`` first, so that it ends soon), or until asked to ``finish``."""

    def __init__(self, context: Context, settings: TrainerSettings, run: str, device: DeviceTurn, build: BuildLearner) -> None:
        self._context, self._settings, self.run_name, self._device = context, settings, run, device
        self._build = build
        self._leaving = asyncio.Event()
        self._has_given_up = False
        self._line: _Line | None = None

    def finish(self) -> bool:
        """Ask for an orderly end: no further step, what was taken is committed, ``run`` returns. False: no line began yet."""
        self._leaving.set()
        if self._line is not None:
            self._line.stepping.stop()
        return self._line is not None

    def give_up(self) -> None:
        """Nothing further is worth waiting for: a step or a checkpoint being written ends soon. Cancel ``run`` then."""
        self._has_given_up = True  # what wakes up before it is cancelled must not take this for an orderly end
        if self._line is not None:
            self._line.stepping.stop()
            self._line.commits.give_up()

    async def run(self) -> None:
        """Join, train, end; then stay and acknowledge what still comes."""
        speaker = self._context.speaker
        self._say_state("waiting for the run to start")
        try:
            config = await read_run(speaker, self.run_name)
            if await speaker.first(TrainingEnded, self.run_name) is not None:
                log.info("training.over", run=self.run_name)
                return
            self._say_state(f"loading {config.model.name}")
            joined = await join_run(self._context, self.run_name, config, self._settings, self._device.epoch, self._build)
        except BadInput as wrong:
            await cannot_begin(self._context, self.run_name, str(wrong))
            return
        self._line = line = self._begin(config, joined)
        queue, name = queue_stream(Service.TRAINER, self.run_name), consumer_name(Service.TRAINER)
        ended_by: BaseException | None = None
        subscription = await self._context.bus.consume(queue, name, line.intake.on_delivery, credit=CREDIT)
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(line.intake.held.keep_alive()), tasks.create_task(self._end_with_line(joined.line))]
                await self._live(line, config, tasks)
                for task in beside:
                    task.cancel()
        except* Superseded as wrong:
            ended_by = wrong.exceptions[0]
        finally:
            await subscription.leave()
            await line.intake.held.hand_back_all()
        if ended_by is not None:
            raise ended_by

    async def _end_with_line(self, line: int) -> None:
        """A later line began: ours counts for nothing any more, and what is held is for that one."""
        wrong = await until_superseded(self._context, self.run_name, line)
        log.error("training.superseded", run=self.run_name, line=line, reason=str(wrong))
        self.give_up()
        raise wrong

    def _begin(self, config: RunConfig, joined: Joined) -> _Line:
        context, run, algorithm = self._context, self.run_name, config.algorithm
        book = GroupBook(
            group_size=algorithm.group_size,
            max_attempts=config.fleet.max_attempts,
            drop_zero_variance=algorithm.drop_zero_variance,
            closed=joined.closed,
        )
        intake = Intake(context, run, book, group_size=algorithm.group_size, vocab_size=joined.learner.vocab_size)
        keep = config.checkpoints.keep
        commits = Commits(joined.checkpoints, context.speaker, run, line=joined.line, keep=keep, committed_step=joined.step)
        return _Line(joined, intake, commits, Stepping(context, run, config, joined, intake, commits, self._device))

    async def _live(self, line: _Line, config: RunConfig, tasks: asyncio.TaskGroup) -> None:
        standing, last_step = line.stepping.standing, config.algorithm.steps
        while standing.step < last_step and (groups := await line.stepping.next_groups()):
            if not await line.stepping.take(groups):
                continue
            if standing.step % config.checkpoints.every_steps == 0 and standing.step < last_step:
                await self._begin_commit(line, tasks)
        if self._has_given_up:
            return
        if not self._leaving.is_set():
            await self._end(line, tasks)
            await self._leaving.wait()
        await self._keep(line, tasks)

    async def _end(self, line: _Line, tasks: asyncio.TaskGroup) -> None:
        """Commit what is not committed, say that training ended, let go of all that is held."""
        step, publisher = line.stepping.standing.step, line.joined.publisher
        await line.commits.settle()
        if line.commits.committed_step < step:
            await self._begin_commit(line, tasks)
            await line.commits.settle()
        if not publisher.newest_is_full:  # stopped before its last step: what it leaves is loaded by itself all the same
            await publisher.publish(line.joined.learner.weights(), step=step, epoch=self._device.epoch, in_full=True)
        version = publisher.weights_version
        await self._context.speaker.say(TrainingEnded(run=self.run_name, step=step, weights_version=version))
        await line.intake.drop(line.intake.book.held, DropReason.RUN_ENDED)
        await line.intake.finish()
        self._say_state("training ended")
        log.info("training.ended", run=self.run_name, step=step, weights_version=version)

    async def _keep(self, line: _Line, tasks: asyncio.TaskGroup) -> None:
        """Asked to leave: commit the steps since the last checkpoint. Killed at any line of it, it is a commit like others."""
        await line.commits.settle()
        newest = await self._context.speaker.last(TrainerStarted, self.run_name)
        ours, living = line.joined.line, 0 if newest is None else newest.line
        committed_step = line.commits.committed_step
        step = step_to_keep(line.stepping.standing, committed_step=committed_step, line=ours, living_line=living)
        if step is not None:
            self._say_state(f"leaving: commits step {step}")
            await self._begin_commit(line, tasks)
            await line.commits.settle()
            log.info("steps.kept", run=self.run_name, step=step, earlier_step=committed_step)

    async def _begin_commit(self, line: _Line, tasks: asyncio.TaskGroup) -> None:
        step = line.stepping.standing.exact
        assert step is not None, "a step that went wrong halfway ends the line"
        await line.commits.begin(step, line.joined.learner, line.intake, tasks)

    def _say_state(self, state: str) -> None:
        say_state(self._context, self.run_name, state)
