"""Making steps durable, and only then saying and acknowledging them.

    step taken ─▶ copy ─▶ written beside further steps ─▶ GroupTrained… ─▶ StepsCommitted ─▶ samples acknowledged
                                          └── killed here: the next start finds the checkpoint and says it all again

One checkpoint is written at a time; a second one waits for the first. A learner is copied only while it stands exactly at
the step (``standing``), so the caller waits for the copy before it goes on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import structlog

from seamlessflow.contracts import GroupTrained, StepsCommitted
from seamlessflow.runtime import Speaker

from .batches import TrainingBatch
from .building import StepLearner
from .checkpoints import Checkpoint, CheckpointStore, Snapshot, snapshot
from .intake import Intake
from .threads import in_thread, patiently

log = structlog.get_logger()


class Commits:
    """One line's commits. ``committed_step``: the newest durable step, and at the start the one resumed from."""

    def __init__(
        self, store: CheckpointStore, speaker: Speaker, run: str, *, line: int, keep: int, committed_step: int
    ) -> None:
        self._store, self._speaker, self._run = store, speaker, run
        self._line, self._keep = line, keep
        self._trained: list[GroupTrained] = []
        self._writing: asyncio.Task[None] | None = None
        self._given_up = threading.Event()
        self.committed_step = committed_step

    def add(self, batch: TrainingBatch, step: int) -> None:
        """The batch was trained in ``step``."""
        for group, episodes in zip(batch.groups, batch.episodes, strict=True):
            self._trained.append(GroupTrained(run=self._run, group=group.group, step=step, episodes=episodes))

    async def begin(self, step: int, learner: StepLearner, intake: Intake, tasks: asyncio.TaskGroup) -> None:
        """Copy the learner as it is and write the copy in the background. Returns when learning may go on."""
        await self.settle()
        copied = await in_thread(lambda: snapshot(learner.weights(), learner.optimizer_state()))
        checkpoint = Checkpoint(step, self._line, tuple(self._trained))
        self._trained = []
        self._writing = tasks.create_task(self._commit(checkpoint, copied, intake))

    def give_up(self) -> None:
        """A checkpoint being written is left without its manifest, as by a kill. Cancel whoever waits for it then."""
        self._given_up.set()

    async def settle(self) -> None:
        """Wait for the checkpoint being written, if one is."""
        if self._writing is not None:
            await self._writing
            self._writing = None

    async def _commit(self, checkpoint: Checkpoint, copied: Snapshot, intake: Intake) -> None:
        started = time.monotonic()
        await patiently("checkpoint.write", self._store.write, checkpoint, copied, self._given_up.is_set)
        log.info("checkpoint.durable", step=checkpoint.step, took_seconds=round(time.monotonic() - started, 2))
        await say_committed(self._speaker, self._run, self._store.path(checkpoint.step), checkpoint)
        self.committed_step = checkpoint.step
        for trained in checkpoint.trained:
            await intake.close(trained.group)
        await patiently("checkpoint.prune", self._store.prune, self._keep)


async def say_committed(speaker: Speaker, run: str, path: str, checkpoint: Checkpoint) -> None:
    """Say what a durable checkpoint means; saying it again changes nothing."""
    for trained in checkpoint.trained:
        await speaker.say(trained)
    said = await speaker.last(StepsCommitted, run, step=checkpoint.step)
    if said is None or said.line != checkpoint.line:  # the de-duplication window is shorter than a night
        await speaker.say(_committed(run, path, checkpoint, checkpoint.trained))


def _committed(run: str, path: str, checkpoint: Checkpoint, trained: Sequence[GroupTrained]) -> StepsCommitted:
    groups = tuple(each.group for each in trained)
    return StepsCommitted(run=run, step=checkpoint.step, line=checkpoint.line, checkpoint=path, groups=groups)
