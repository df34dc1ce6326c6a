"""The trainer's life in one run: lines one after the other, each from joining to TrainingEnded at the latest.

    join ─▶ ┌ wait for a batch ─▶ BatchReady ─▶ wait for the device ─▶ learn ─▶ publish ─▶ StepTaken ─▶ checkpoint? ┐
            └──────────────────────────────────────────◀───────────────────────────────────────────────────────────┘
                    ├─ all steps taken, or the end requested ─▶ last checkpoint ─▶ TrainingEnded
                    ├─ another claim on the run is newer (``living``) ─▶ everything handed back ─▶ the next line, or an error
                    └─ asked to leave (SIGTERM) ─▶ a checkpoint of what was taken since the last one ─▶ gone
    cannot join ─▶ RunStopRequested, and TrainingEnded with what failed where an earlier line began
    cannot join before a person decides ─▶ RunHeld ─▶ the next line, once that is answered

Waits for: samples (``SampleQueue.changed``), the device (``DeviceTurn``), a store that is away. Everything in memory may be
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
from .data.sample_queue import SampleQueue
from .device_turn import DeviceTurn
from .incarnations import RollbackRequested, is_leased, pause_seconds, until_answered, until_leased, until_superseded
from .learner.factory import BuildLearner
from .reporting import report_failed_start, set_state
from .run_start import RunStart, join_run
from .steps.checkpoint_restore import DecisionNeeded
from .steps.step_commits import StepCommitter
from .steps.train_step import StepRunner, step_to_commit

log = structlog.get_logger()

CREDIT = 100_000
"""Deliveries being opened at a time; opened ones are held beyond it."""


@dataclass(frozen=True, slots=True)
class _Incarnation:
    """What a line that began is made of."""

    start: RunStart
    sample_queue: SampleQueue
    committer: StepCommitter
    step_runner: StepRunner


class TrainerRun:
    """One run. ``run`` until cancelled (``give_up`` first, so that it ends soon), or until asked to ``finish``."""

    def __init__(self, context: Context, settings: TrainerSettings, run: str, device: DeviceTurn, build: BuildLearner) -> None:
        self._context, self._settings, self.run_name, self._device = context, settings, run, device
        self._build = build
        self._leaving = asyncio.Event()
        self._has_given_up = self._is_dismissed = False
        self._is_held = False
        """The last line did not begin, and a person has to decide before the next one."""
        self._watch: asyncio.Task[None] | None = None
        self._incarnation: _Incarnation | None = None

    def finish(self) -> bool:
        """Ask for an orderly end: no further step, what was taken is committed, ``run`` returns. False: no line began yet."""
        self._leaving.set()
        if self._incarnation is not None:
            self._incarnation.step_runner.stop()
        return self._incarnation is not None

    def give_up(self) -> None:
        """Nothing further is worth waiting for: a step or a checkpoint being written ends soon. Cancel ``run`` then."""
        self._is_dismissed = True
        self._abandon_incarnation()

    def _abandon_incarnation(self) -> None:
        self._has_given_up = True  # what wakes up before it is cancelled must not take this for an orderly end
        if self._incarnation is not None:
            self._incarnation.step_runner.stop()
            self._incarnation.committer.give_up()

    async def run(self) -> None:
        """Line after line, until training is over or we are asked to leave.

        Raises Superseded where another claim is newer although our lease names us.
        """
        while not (self._leaving.is_set() or self._is_dismissed):
            ended_by = await self._run_incarnation()
            if self._is_dismissed:  # a group of tasks that fails at the moment of our cancellation swallows it
                return
            if isinstance(ended_by, RollbackRequested):
                log.warning("training.rolls_back", run=self.run_name, reason=str(ended_by))
            elif ended_by is not None:
                if ended_by.is_closing:
                    self._set_state("the run is being closed")
                    return
                await self._after_superseded(ended_by)
            elif self._is_held:
                await until_answered(self._context, self.run_name)
            else:
                return
            self._has_given_up = False
            gc.collect()  # the last learner may be in a cycle with what ended its line, and the next one needs the room

    async def _run_incarnation(self) -> Superseded | RollbackRequested | None:
        """Join, train, end; then stay and acknowledge what still comes. Returns what ended the line early.

        Returned, not raised: a traceback would keep the line's learner beside the next one.
        """
        self._is_held = False
        try:
            config = await self._read_started_run()
            start = None if config is None else await self._join(config)
            return None if config is None or start is None else await self._train(config, start)
        except Superseded as wrong:
            return Superseded(str(wrong), is_closing=wrong.is_closing)

    async def _read_started_run(self) -> RunConfig | None:
        """The run's document, once there is one. None: training is over, or held, which a claim would only disturb."""
        self._set_state("waiting for the run to start")
        context, run = self._context, self.run_name
        config = await read_run(context.journal, run)
        with suppress(MalformedMessage):  # after the claim the run is held for it
            history = await read_commits(context.bus, context.journal, run)
            if history.is_over or history.held is not None:
                self._report_not_begun(history)
                return None
        return config

    async def _join(self, config: RunConfig) -> RunStart | None:
        """None: this line does not begin."""
        context, run = self._context, self.run_name
        self._set_state(f"loading {config.model.name}")
        by = f"{Service.TRAINER.value} {context.settings.instance}"
        claim = CommitClaim(context.bus, context.journal, run, by)
        try:
            start = await join_run(context, claim, run, config, self._settings, self._device.epoch, self._build)
        except BadInput as wrong:
            await report_failed_start(context, claim, run, str(wrong))
            return None
        except DecisionNeeded as wrong:
            log.error("run.held", run=run, reason=str(wrong))
            await claim.append(RunHeld(run=run, reason=str(wrong), nonce=claim.nonce))
            self._is_held = True
            self._set_state(f"held: {wrong}")
            return None
        if start is None:
            self._report_not_begun(await read_commits(context.bus, context.journal, run))
        return start

    def _report_not_begun(self, history: CommitHistory) -> None:
        self._is_held = not history.is_over  # a hold may be answered since it was seen
        log.info("training.not_begun", run=self.run_name, held=self._is_held)
        self._set_state("held: a person has to decide" if self._is_held else "training is over")

    async def _train(self, config: RunConfig, start: RunStart) -> Superseded | RollbackRequested | None:
        """From the first sample to the last acknowledgement."""
        self._incarnation = incarnation = self._new_incarnation(config, start)
        queue, name = queue_stream(Service.TRAINER, self.run_name), consumer_name(Service.TRAINER)
        ended_by: Superseded | RollbackRequested | None = None
        subscription = await self._context.bus.consume(queue, name, incarnation.sample_queue.on_delivery, credit=CREDIT)
        try:
            async with asyncio.TaskGroup() as tasks:
                pings = tasks.create_task(incarnation.sample_queue.held.keep_alive())
                watch: asyncio.Task[None] = tasks.create_task(self._watch_claim(start))
                self._watch = watch
                await self._train_steps(incarnation, config, tasks)
                for task in (pings, watch):
                    task.cancel()
        except* (Superseded, RollbackRequested) as wrong:
            ended_by = _without_traceback(wrong)
        finally:
            await subscription.leave()
            await incarnation.sample_queue.held.hand_back_all()
            self._incarnation = None
            self._watch = None  # a task that failed keeps its frames, and with them the learner
        _forget_cancellations()
        return ended_by

    async def _watch_claim(self, start: RunStart) -> None:
        """The line ends early: what it did since its last commit counts for nothing, and what it holds is for the next one."""
        try:
            await until_superseded(self._context, self.run_name, start.claim, start.history)
        except (Superseded, RollbackRequested):
            self._abandon_incarnation()
            raise

    async def _after_superseded(self, wrong: Superseded) -> None:
        """Everything is handed back. Returns once a lease names us again; raises where the one that stands does."""
        context, run = self._context, self.run_name
        if self._leaving.is_set():
            return
        if not await is_leased(context, run):
            log.info("training.superseded", run=run, reason=str(wrong))
            self._set_state("another trainer has the run")
            await until_leased(context, run)
            return
        seconds = await pause_seconds(CommitClaim(context.bus, context.journal, run, ""))
        log.error("training.superseded", run=run, reason=str(wrong), exits_in_seconds=seconds)
        await asyncio.sleep(seconds)
        raise Superseded(
            f"{wrong}. Node {context.settings.node} is still the one to train run {run}: another trainer process has its name, "
            "or this one stood still while another trained. It ends; give each process a SEAMLESSFLOW_NODE of its own"
        )

    def _new_incarnation(self, config: RunConfig, start: RunStart) -> _Incarnation:
        context, run, algorithm = self._context, self.run_name, config.algorithm
        book = GroupBook(
            group_size=algorithm.group_size,
            max_attempts=config.fleet.max_attempts,
            drop_zero_variance=algorithm.drop_zero_variance,
            closed=start.closed,
        )
        sample_queue = SampleQueue(
            context, start.claim, run, book, group_size=algorithm.group_size, vocab_size=start.learner.vocab_size
        )
        committer = StepCommitter(
            start.checkpoints,
            context.journal,
            start.claim,
            run,
            history=start.history,
            keep=config.checkpoints.keep,
            committed_step=start.step,
        )
        return _Incarnation(
            start, sample_queue, committer, StepRunner(context, run, config, start, sample_queue, committer, self._device)
        )

    async def _train_steps(self, incarnation: _Incarnation, config: RunConfig, tasks: asyncio.TaskGroup) -> None:
        step_state, last_step = incarnation.step_runner.step_state, config.algorithm.steps
        while step_state.step < last_step and (groups := await incarnation.step_runner.next_groups()):
            if not await incarnation.step_runner.take(groups):
                continue
            if step_state.step % config.checkpoints.every_steps == 0 and step_state.step < last_step:
                await self._begin_commit(incarnation, tasks)
        if self._has_given_up:
            return
        if not self._leaving.is_set():
            await self._end_training(incarnation, tasks)
            await self._leaving.wait()
        await self._commit_before_leaving(incarnation, tasks)

    async def _end_training(self, incarnation: _Incarnation, tasks: asyncio.TaskGroup) -> None:
        """Commit what is not committed, publish that training ended, let go of what is held: the scheduler drops the rest."""
        step, publisher = incarnation.step_runner.step_state.step, incarnation.start.publisher
        await incarnation.committer.settle()
        if incarnation.committer.committed_step < step:
            await self._begin_commit(incarnation, tasks)
            await incarnation.committer.settle()
        if not publisher.newest_is_full:  # stopped before its last step: what it leaves is loaded by itself all the same
            await publisher.publish(incarnation.start.learner.weights(), step=step, epoch=self._device.epoch, in_full=True)
        version = publisher.weights_version
        await incarnation.start.claim.append(
            TrainingEnded(run=self.run_name, step=step, weights_version=version, nonce=incarnation.start.claim.nonce)
        )
        if self._watch is not None:
            self._watch.cancel()  # from here on the run is the scheduler's to close, by a claim of its own
        await incarnation.sample_queue.finish()
        self._set_state("training ended")
        log.info("training.ended", run=self.run_name, step=step, weights_version=version)

    async def _commit_before_leaving(self, incarnation: _Incarnation, tasks: asyncio.TaskGroup) -> None:
        """Asked to leave: commit the steps since the last checkpoint. Killed at any line of it, it is a commit like others."""
        await incarnation.committer.settle()
        committed_step = incarnation.committer.committed_step
        step = step_to_commit(incarnation.step_runner.step_state, committed_step=committed_step)
        if step is not None:
            await incarnation.start.claim.check()
            self._set_state(f"leaving: commits step {step}")
            await self._begin_commit(incarnation, tasks)
            await incarnation.committer.settle()
            log.info("steps.kept", run=self.run_name, step=step, earlier_step=committed_step)

    async def _begin_commit(self, incarnation: _Incarnation, tasks: asyncio.TaskGroup) -> None:
        step = incarnation.step_runner.step_state.exact
        assert step is not None, "a step that went wrong halfway ends the line"
        await incarnation.committer.begin(step, incarnation.start.learner, incarnation.sample_queue, tasks)

    def _set_state(self, state: str) -> None:
        set_state(self._context, self.run_name, state)


def _forget_cancellations() -> None:
    """A group of tasks that failed may leave its own request behind (Python 3.11 and 3.12), and the next group takes it for
    another's."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _without_traceback(wrong: BaseExceptionGroup[Superseded | RollbackRequested]) -> Superseded | RollbackRequested:
    """Of several that tell the same, one, without its traceback."""
    each: BaseException = wrong
    while isinstance(each, BaseExceptionGroup):
        each = each.exceptions[0]
    if isinstance(each, Superseded):
        return Superseded(str(each), is_closing=each.is_closing)
    return RollbackRequested(str(each))
