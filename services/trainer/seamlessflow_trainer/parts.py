"""The parts of a step on their way to the learner: put in the event loop, taken in the learner's thread.

groups that are there when the step begins ──▶ first part ──▶ gradients
groups that come while it learns           ──▶ further parts ──▶ gradients ──end──▶ normalised, and the step is taken
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum
from queue import SimpleQueue

import torch

from .batches import TrainingBatch
from .learner import Abandoned


class _Last(Enum):
    """What comes instead of a part."""

    END = "nothing more comes: take the step"
    GIVE_UP = "nobody wants the step any more"


class Feed:
    """Iterate it in the learner's thread: it waits for the next part until ``end`` or ``give_up``, one of which must come.

    Raises Abandoned after ``give_up``.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[TrainingBatch | _Last] = SimpleQueue()

    def put(self, part: TrainingBatch) -> None:
        self._queue.put(part)

    def end(self) -> None:
        self._queue.put(_Last.END)

    def give_up(self) -> None:
        """Idempotent, and nothing after ``end``."""
        self._queue.put(_Last.GIVE_UP)

    def __iter__(self) -> Iterator[TrainingBatch]:
        while (item := self._queue.get()) is not _Last.END:
            if item is _Last.GIVE_UP:
                raise Abandoned("the step was given up while it waited for groups; nothing was changed")
            assert isinstance(item, TrainingBatch)
            yield item


def joined(parts: Sequence[TrainingBatch]) -> TrainingBatch:
    """The batch that all parts are together."""
    if len(parts) == 1:
        return parts[0]
    firsts, num_before = [], 0
    for part in parts:
        firsts.append(num_before)
        num_before += part.num_trained
    return TrainingBatch(
        groups=tuple(group for part in parts for group in part.groups),
        paths=tuple(
            tuple(replace(path, first=first + path.first) for path in paths)
            for first, part in zip(firsts, parts, strict=True)
            for paths in part.paths
        ),
        engine_logprobs_N=torch.cat([part.engine_logprobs_N for part in parts]),
        advantages_N=torch.cat([part.advantages_N for part in parts]),
        is_current_N=torch.cat([part.is_current_N for part in parts]),
        episodes=tuple(accounts for part in parts for accounts in part.episodes),
        ages=sum((Counter(part.ages) for part in parts), Counter[int]()),
    )
