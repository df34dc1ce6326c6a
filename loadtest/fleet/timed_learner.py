"""A learner that takes the time a gang would take for a step, and learns nothing; and what its gang loads onto devices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from seamlessflow_trainer.data.batch import TrainingBatch
from seamlessflow_trainer.learner.base import Abandoned, StepFigures

from .cost import Cost
from .timed_clock import Scale

LOOK_SECONDS = 0.02
"""Real seconds between two looks whether the step is to be given up."""


class TimedLearner:
    """One weight, which counts its steps. Implements ``StepLearner``."""

    def __init__(self, cost: Cost, scale: Scale, *, vocab_size: int) -> None:
        self._cost, self._scale, self._vocab_size = cost, scale, vocab_size
        self._steps = torch.zeros(1)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    def train_parts(
        self, parts: Iterable[TrainingBatch], *, learning_rate: float, num_nodes: int, should_stop: Callable[[], bool]
    ) -> StepFigures:
        """Sleeps for the step's time on all tokens of the parts, prompts included."""
        for part in parts:
            tokens = sum(len(path.token_ids) for paths in part.paths for path in paths)
            modelled = self._scale.modelled_tokens(tokens)
            self._sleep(self._cost.train_seconds(modelled, num_nodes) - self._cost.train_fixed, should_stop)
        self._sleep(self._cost.train_fixed, should_stop)
        self._steps += 1
        return StepFigures()

    def _sleep(self, seconds: float, should_stop: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + self._scale.real_seconds(seconds)
        while (left := ends_at - time.monotonic()) > 0:
            if should_stop():
                raise Abandoned("the step was given up on request; nothing was changed")
            time.sleep(min(left, LOOK_SECONDS))

    def weights(self) -> Mapping[str, Tensor]:
        return {"steps": self._steps}

    def optimizer_state(self) -> Mapping[str, Tensor]:
        return {"steps": self._steps}

    def restore(self, weights: Mapping[str, Tensor], optimizer_state: Mapping[str, Tensor]) -> None:
        self._steps = weights["steps"].clone()


class TimedState:
    """The trainer's state on its way between host memory and device. Implements ``Occupant``."""

    def __init__(self, cost: Cost, scale: Scale) -> None:
        self._cost, self._scale = cost, scale

    async def load(self) -> None:
        await asyncio.sleep(self._scale.real_seconds(self._cost.onload_seconds))

    async def unload(self) -> None:
        await asyncio.sleep(self._scale.real_seconds(self._cost.offload_seconds))
