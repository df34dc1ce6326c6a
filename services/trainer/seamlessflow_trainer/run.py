"""The trainer's life in one run: lines one after the other, each from joining to TrainingEnded at the latest.

    join ─▶ ┌ wait for a batch ─▶ BatchReady ─▶ wait for the device ─▶ learn ─▶ publish ─▶ StepTaken ─▶ checkpoint? ┐
            └──────────────────────────────────────────◀───────────────────────────────────────────────────────────┘
                    ├─ all steps taken, or the end requested ─▶ last checkpoint ─▶ TrainingEnded
                    ├─ another claim on the run is newer (``living``) ─▶ everything handed back ─▶ the next line, or an error
                    └─ asked to leave (SIGTERM) ─▶ a checkpoint of what was taken since the last one ─▶ gone
    cannot join ─▶ RunStopRequested, and TrainingEnded with what failed where an earlier line began
    cannot join before a person decides ─▶ RunHeld ─▶ the next line, once that is answered

Waits for: samples (the intake's ``news``), the device (``DeviceTurn``), a store that is away. Everything in memory may be
lost at any line: committed steps are in a checkpoint, and the samples of all others are not acknowledged.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from dataclasses import dataclass

import structlog

from seamlessflow.checkpoints.commit_claim import CommitClaim, read_commits
from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import RunHeld, Service, TrainingEnded
from seamlessflow.contracts.streams import consumer_name, queue_stream
from seamlessflow.errors import BadInput, MalformedMessage, Superseded
from seamlessflow.runtime import Context, read_run

from .config import TrainerSettings
from .data.groups import GroupBook
from .data.sample_queue import Intake
from .device_turn import DeviceTurn
from .incarnations import RollbackWanted, pause_seconds, until_answered, until_named, until_superseded, whether_named
from .learner.factory import BuildLearner
from .reporting import cannot_begin, set_state
from .run_start import Joined, join_run
from .steps.checkpoint_restore import Held
from .steps.step_commits import Commits
from .steps.train_step import Stepping, step_to_keep

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
    """One run. ``run`` until cancelled (``give_up`` first, so that it ends soon), or until asked to ``finish``."""

    def __init__(self, context: Context, settings: TrainerSettings, run: str, device: DeviceTurn, build: BuildLearner) -> None:
        self._context, self._settings, self.run_name, self._device = context, settings, run, device
        self._build = build
        self._leaving = asyncio.Event()
        self._has_given_up = self._is_dismissed = False
        self._is_held = False
        """The last line did not begin, and a person has to decide before the next one."""
        self._watch: asyncio.Task[None] | None = None
        self._line: _Line | None = None

    def finish(self) -> bool:
        """Ask for an orderly end: no further step, what was taken is committed, ``run`` returns. False: no line began yet."""
        self._leaving.set()
        if self._line is not None:
            self._line.stepping.stop()
        return self._line is not None

    def give_up(self) -> None:
        """Nothing further is worth waiting for: a step or a checkpoint being written ends soon. Cancel ``run`` then."""
        self._is_dismissed = True
        self._abandon_line()

    def _abandon_line(self) -> None:
        self._has_given_up = True  # what wakes up before it is cancelled must not take this for an orderly end
        if self._line is not None:
            self._line.stepping.stop()
            self._line.commits.give_up()

    async def run(self) -> None:
        """Line after line, until training is over or we are asked to leave.

        Raises Superseded where another claim is newer although our lease names us.
        """
        while not (self._leaving.is_set() or self._is_dismissed):
            ended_by = await self._one_line()
            if self._is_dismissed:  # a group of tasks that fails at the moment of our cancellation swallows it
                return
            if isinstance(ended_by, RollbackWanted):
                log.warning("training.rolls_back", run=self.run_name, reason=str(ended_by))
            elif ended_by is not None:
                if ended_by.is_closing:
                    self._say_state("the run is being closed")
                    return
                await self._superseded(ended_by)
            elif self._is_held:
                await until_answered(self._context, self.run_name)
            else:
                return
            self._has_given_up = False
            gc.collect()  # the last learner may be in a cycle with what ended its line, and the next one needs the room

    async def _one_line(self) -> Superseded | RollbackWanted | None:
        """Join, train, end; then stay and acknowledge what still comes. Returns what ended the line early.

        Returned, not raised: a traceback would keep the line's learner beside the next one.
        """
        self._is_held = False
        try:
            config = await self._until_started()
            joined = None if config is None else await self._join(config)
            return None if config is None or joined is None else await self._train(config, joined)
        except Superseded as wrong:
            return Superseded(str(wrong), is_closing=wrong.is_closing)

    async def _until_started(self) -> RunConfig | None:
        """The run's document, once there is one. None: training is over, or held, which a claim would only disturb."""
        self._say_state("waiting for the run to start")
        context, run = self._context, self.run_name
        config = await read_run(context.journal, run)
        with suppress(MalformedMessage):  # after the claim the run is held for it
            history = await read_commits(context.bus, context.journal, run)
            if history.is_over or history.held is not None:
                self._not_begun(history)
                return None
        return config

    async def _join(self, config: RunConfig) -> Joined | None:
        """None: this line does not begin."""
        context, run = self._context, self.run_name
        self._say_state(f"loading {config.model.name}")
        by = f"{Service.TRAINER.value} {context.settings.instance}"
        claim = CommitClaim(context.bus, context.journal, run, by)
        try:
            joined = await join_run(context, claim, run, config, self._settings, self._device.epoch, self._build)
        except BadInput as wrong:
            await cannot_begin(context, claim, run, str(wrong))
            return None
        except Held as wrong:
            log.error("run.held", run=run, reason=str(wrong))
            await claim.append(RunHeld(run=run, reason=str(wrong), nonce=claim.nonce))
            self._is_held = True
            self._say_state(f"held: {wrong}")
            return None
        if joined is None:
            self._not_begun(await read_commits(context.bus, context.journal, run))
        return joined

    def _not_begun(self, history: CommitHistory) -> None:
        self._is_held = not history.is_over  # a hold may be answered since it was seen
        log.info("training.not_begun", run=self.run_name, held=self._is_held)
        self._say_state("held: a person has to decide" if self._is_held else "training is over")

    async def _train(self, config: RunConfig, joined: Joined) -> Superseded | RollbackWanted | None:
        """From the first sample to the last acknowledgement."""
        self._line = line = self._begin(config, joined)
        queue, name = queue_stream(Service.TRAINER, self.run_name), consumer_name(Service.TRAINER)
        ended_by: Superseded | RollbackWanted | None = None
        subscription = await self._context.bus.consume(queue, name, line.intake.on_delivery, credit=CREDIT)
        try:
            async with asyncio.TaskGroup() as tasks:
                pings = tasks.create_task(line.intake.held.keep_alive())
                watch: asyncio.Task[None] = tasks.create_task(self._end_with_claim(joined))
                self._watch = watch
                await self._live(line, config, tasks)
                for task in (pings, watch):
                    task.cancel()
        except* (Superseded, RollbackWanted) as wrong:
            ended_by = _retold(wrong)
        finally:
            await subscription.leave()
            await line.intake.held.hand_back_all()
            self._line = None
            self._watch = None  # a task that failed keeps its frames, and with them the learner
        _forget_cancellations()
        return ended_by

    async def _end_with_claim(self, joined: Joined) -> None:
        """The line ends early: what it did since its last commit counts for nothing, and what it holds is for the next one."""
        try:
            await until_superseded(self._context, self.run_name, joined.claim, joined.history)
        except (Superseded, RollbackWanted):
            self._abandon_line()
            raise

    async def _superseded(self, wrong: Superseded) -> None:
        """Everything is handed back. Returns once a lease names us again; raises where the one that stands does."""
        context, run = self._context, self.run_name
        if self._leaving.is_set():
            return
        if not await whether_named(context, run):
            log.info("training.superseded", run=run, reason=str(wrong))
            self._say_state("another trainer has the run")
            await until_named(context, run)
            return
        seconds = await pause_seconds(CommitClaim(context.bus, context.journal, run, ""))
        log.error("training.superseded", run=run, reason=str(wrong), exits_in_seconds=seconds)
        await asyncio.sleep(seconds)
        raise Superseded(
            f"{wrong}. Node {context.settings.node} is still the one to train run {run}: another trainer process has its name, "
            "or this one stood still while another trained. It ends; give each process a SEAMLESSFLOW_NODE of its own"
        )

    def _begin(self, config: RunConfig, joined: Joined) -> _Line:
        context, run, algorithm = self._context, self.run_name, config.algorithm
        book = GroupBook(
            group_size=algorithm.group_size,
            max_attempts=config.fleet.max_attempts,
            drop_zero_variance=algorithm.drop_zero_variance,
            closed=joined.closed,
        )
        intake = Intake(context, joined.claim, run, book, group_size=algorithm.group_size, vocab_size=joined.learner.vocab_size)
        commits = Commits(
            joined.checkpoints,
            context.journal,
            joined.claim,
            run,
            history=joined.history,
            keep=config.checkpoints.keep,
            committed_step=joined.step,
        )
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
        """Commit what is not committed, publish that training ended, let go of what is held: the scheduler drops the rest."""
        step, publisher = line.stepping.standing.step, line.joined.publisher
        await line.commits.settle()
        if line.commits.committed_step < step:
            await self._begin_commit(line, tasks)
            await line.commits.settle()
        if not publisher.newest_is_full:  # stopped before its last step: what it leaves is loaded by itself all the same
            await publisher.publish(line.joined.learner.weights(), step=step, epoch=self._device.epoch, in_full=True)
        version = publisher.weights_version
        await line.joined.claim.append(
            TrainingEnded(run=self.run_name, step=step, weights_version=version, nonce=line.joined.claim.nonce)
        )
        if self._watch is not None:
            self._watch.cancel()  # from here on the run is the scheduler's to close, by a claim of its own
        await line.intake.finish()
        self._say_state("training ended")
        log.info("training.ended", run=self.run_name, step=step, weights_version=version)

    async def _keep(self, line: _Line, tasks: asyncio.TaskGroup) -> None:
        """Asked to leave: commit the steps since the last checkpoint. Killed at any line of it, it is a commit like others."""
        await line.commits.settle()
        committed_step = line.commits.committed_step
        step = step_to_keep(line.stepping.standing, committed_step=committed_step)
        if step is not None:
            await line.joined.claim.check()
            self._say_state(f"leaving: commits step {step}")
            await self._begin_commit(line, tasks)
            await line.commits.settle()
            log.info("steps.kept", run=self.run_name, step=step, earlier_step=committed_step)

    async def _begin_commit(self, line: _Line, tasks: asyncio.TaskGroup) -> None:
        step = line.stepping.standing.exact
        assert step is not None, "a step that went wrong halfway ends the line"
        await line.commits.begin(step, line.joined.learner, line.intake, tasks)

    def _say_state(self, state: str) -> None:
        set_state(self._context, self.run_name, state)


def _forget_cancellations() -> None:
    """A group of tasks that failed may leave its own request behind (Python 3.11 and 3.12), and the next group takes it for
    another's."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _retold(wrong: BaseExceptionGroup[Superseded | RollbackWanted]) -> Superseded | RollbackWanted:
    """Of several that tell the same, one, without its traceback."""
    each: BaseException = wrong
    while isinstance(each, BaseExceptionGroup):
        each = each.exceptions[0]
    if isinstance(each, Superseded):
        return Superseded(str(each), is_closing=each.is_closing)
    return RollbackWanted(str(each))
