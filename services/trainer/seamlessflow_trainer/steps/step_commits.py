"""Committing steps: writes their checkpoint, and only then publishes and acknowledges the groups they trained.

    step taken ─▶ copy ─▶ written beside further steps ─▶ StepsCommitted ─▶ GroupTrained… ─▶ acknowledgements ─▶ prune
                           └ killed here: a folder that     │  (by claim)     └ killed here: the next incarnation publishes
                             no event names                 │                   the rest
                                                            └ refused: another claim is newer, nothing is acknowledged

One checkpoint is written at a time; a second one waits for the first. A learner is copied only while it is exactly at a step
(``train_step.StepState``), so the caller waits for the copy before it goes on.
"""

from __future__ import annotations

import asyncio
import threading
import time

import structlog

from seamlessflow.checkpoints.checkpoint_folders import Checkpoint
from seamlessflow.checkpoints.commit_claim import CommitClaim, publish_account
from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.contracts import StepsCommitted, TrainedGroup
from seamlessflow.errors import BusClosed, Unavailable
from seamlessflow.runtime import Journal
from seamlessflow_trainer.blocking_work import RETRY_SECONDS, in_thread, in_thread_with_retry
from seamlessflow_trainer.data.batch import TrainingBatch
from seamlessflow_trainer.data.sample_queue import SampleQueue
from seamlessflow_trainer.learner.base import StepLearner

from .checkpoints import CheckpointStore, Snapshot, snapshot

log = structlog.get_logger()


class StepCommitter:
    """The commits of one incarnation. ``history``: claims and commits until it began; its own commits are added."""

    def __init__(
        self,
        store: CheckpointStore,
        journal: Journal,
        claim: CommitClaim,
        run: str,
        *,
        history: CommitHistory,
        keep: int,
        committed_step: int,
    ) -> None:
        self._store, self._journal, self._claim, self._run = store, journal, claim, run
        self._history, self._keep = history, keep
        self._trained: list[TrainedGroup] = []
        self._writing: asyncio.Task[None] | None = None
        self._given_up = threading.Event()
        self.committed_step = committed_step
        """The newest committed step; at the start, the one resumed from."""

    def add(self, batch: TrainingBatch, step: int) -> None:
        """Record that ``step`` trained the batch; the next commit names its groups."""
        for group, episodes in zip(batch.groups, batch.episodes, strict=True):
            self._trained.append(TrainedGroup(group=group.group, step=step, episodes=episodes))

    async def begin(self, step: int, learner: StepLearner, sample_queue: SampleQueue, tasks: asyncio.TaskGroup) -> None:
        """Copy the learner and commit the copy in the background. Returns once the learner may change again."""
        await self.settle()
        copied = await in_thread(lambda: snapshot(learner.weights(), learner.optimizer_state()))
        newest = self._history.newest
        predecessor = None if newest is None else newest.checkpoint
        checkpoint = Checkpoint(step, self._claim.line, tuple(self._trained), self._claim.nonce, predecessor)
        self._trained = []
        self._writing = tasks.create_task(self._commit(checkpoint, copied, sample_queue))

    def give_up(self) -> None:
        """Leave a checkpoint that is being written without its manifest, as a kill would. Cancel the tasks that wait for it."""
        self._given_up.set()

    async def settle(self) -> None:
        """Wait for the checkpoint being written, if one is."""
        if self._writing is not None:
            await self._writing
            self._writing = None

    async def _commit(self, checkpoint: Checkpoint, copied: Snapshot, sample_queue: SampleQueue) -> None:
        """Raises Superseded: the checkpoint is not committed, and nothing was acknowledged or removed."""
        started = time.monotonic()
        path = await in_thread_with_retry("checkpoint.write", self._store.write, checkpoint, copied, self._given_up.is_set)
        log.info("checkpoint.durable", step=checkpoint.step, took_seconds=round(time.monotonic() - started, 2))
        committed = commit_event(self._run, self._claim, path, checkpoint)
        await append_with_retry(self._claim, committed)
        self._history.apply(committed)
        self.committed_step = checkpoint.step
        await publish_account(self._journal, self._run, checkpoint.trained)
        for trained in checkpoint.trained:
            await sample_queue.close(trained.group)
        await in_thread_with_retry("checkpoint.prune", self._store.prune, self._history, self._keep, self._claim.line)


def commit_event(run: str, claim: CommitClaim, path: str, checkpoint: Checkpoint) -> StepsCommitted:
    """The commit of a written checkpoint."""
    return StepsCommitted(
        run=run,
        step=checkpoint.step,
        line=claim.line,
        checkpoint=path,
        groups=tuple(each.group for each in checkpoint.trained),
        nonce=claim.nonce,
        account=checkpoint.trained,
    )


async def append_with_retry(claim: CommitClaim, event: StepsCommitted) -> None:
    """Append, with retries while the store is unavailable: a large account is stored there. Raises Superseded."""
    while True:
        try:
            await claim.append(event)
            return
        except BusClosed:
            raise
        except Unavailable as wrong:
            log.warning("commit.waits", step=event.step, reason=str(wrong), again_in_seconds=RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)
