"""The parts of a step's batch on their way to the learner: put by the event loop, taken by the learner's thread.

groups that are ready when the step begins ──▶ first part    ──▶ gradients
groups that become ready during the step   ──▶ further parts ──▶ gradients ──end──▶ normalised, then the optimiser step
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from queue import SimpleQueue

from seamlessflow_trainer.learner.base import Abandoned

from .batch import TrainingBatch


class _FeedEnd(Enum):
    """What comes instead of a part."""

    END = "nothing more comes: take the step"
    GIVE_UP = "nobody wants the step any more"


class BatchFeed:
    """Iterate it in the learner's thread: it waits for the next part until ``end`` or ``give_up``, one of which must come.

    Raises Abandoned after ``give_up``.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[TrainingBatch | _FeedEnd] = SimpleQueue()

    def put(self, part: TrainingBatch) -> None:
        self._queue.put(part)

    def end(self) -> None:
        self._queue.put(_FeedEnd.END)

    def give_up(self) -> None:
        """Idempotent, and nothing after ``end``."""
        self._queue.put(_FeedEnd.GIVE_UP)

    def __iter__(self) -> Iterator[TrainingBatch]:
        while (item := self._queue.get()) is not _FeedEnd.END:
            if item is _FeedEnd.GIVE_UP:
                raise Abandoned("the step was given up while it waited for groups; nothing was changed")
            assert isinstance(item, TrainingBatch)
            yield item
