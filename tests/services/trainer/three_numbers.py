"""A learner of three numbers that tell which groups it was trained on, how often and in which order. Not a test.

how many groups │ 8^i for each group g<i>: an octal digit counts it │ a hash of the order
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from seamlessflow_trainer.data.batch import TrainingBatch
from seamlessflow_trainer.learner.base import Abandoned, StepFigures

MOST_GROUPS = 7
"""g0 to g6: all digits together are whole numbers that float32 holds."""
NAME = "numbers"


class ThreeNumbers:
    """Keeps every promise of a StepLearner."""

    vocab_size = 100

    def __init__(self) -> None:
        self._numbers, self._steps = torch.zeros(3), torch.zeros(1, dtype=torch.int64)

    def train_parts(
        self, parts: Iterable[TrainingBatch], *, learning_rate: float, num_nodes: int, should_stop: Callable[[], bool]
    ) -> StepFigures:
        names = [group.group for part in parts for group in part.groups]
        if should_stop():
            raise Abandoned("the step was given up on request; nothing was changed")
        count, digits, order = (int(each) for each in self._numbers.tolist())
        for number in (int(name.removeprefix("g")) for name in names):
            count, digits, order = count + 1, digits + 8**number, (order * 31 + number + 1) % 1_000_003
        self._numbers = torch.tensor([count, digits, order], dtype=torch.float32)
        self._steps = self._steps + 1
        return StepFigures(num_computed=1)

    def weights(self) -> Mapping[str, Tensor]:
        return {NAME: self._numbers}

    def optimizer_state(self) -> Mapping[str, Tensor]:
        return {"steps": self._steps}

    def restore(self, weights: Mapping[str, Tensor], optimizer_state: Mapping[str, Tensor]) -> None:
        self._numbers, self._steps = weights[NAME].clone(), optimizer_state["steps"].clone()


def trained_groups(weights: Mapping[str, Tensor]) -> Counter[str]:
    """How often each group was trained."""
    count, digits, _ = (int(each) for each in weights[NAME].tolist())
    found = Counter({f"g{number}": times for number in range(MOST_GROUPS) if (times := digits >> 3 * number & 7)})
    assert found.total() == count, f"{count} groups, but {dict(found)}"
    return found
