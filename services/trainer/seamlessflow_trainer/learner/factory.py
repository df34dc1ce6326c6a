"""What a trainer asks of a learner, and making the torch one; a load test brings its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import structlog
from torch import Tensor

from seamlessflow.config.run import RunConfig
from seamlessflow_trainer.config import TrainerSettings
from seamlessflow_trainer.data.batch import TrainingBatch

from .learner import StepFigures
from .model_loading import load_learner, pick_device

log = structlog.get_logger()


class StepLearner(Protocol):
    """Weights and an optimiser. Every method blocks and is called in a worker thread, one at a time."""

    @property
    def vocab_size(self) -> int:
        """Token ids lie below it."""
        ...

    def train_parts(
        self, parts: Iterable[TrainingBatch], *, learning_rate: float, num_nodes: int, should_stop: Callable[[], bool]
    ) -> StepFigures:
        """One optimiser step. Raises NotFinite, or Abandoned soon after ``should_stop`` turned true: nothing was changed then.

        parts: of one batch, as they come: iterating waits for the next, and raises Abandoned. At least one comes.
        num_nodes: devices that are held for this step, its own included. One that takes its steps alone uses its own.
        """
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """What is published, under the names the engine knows (``TrainsAdapters``: PEFT's). Live: read before the next step."""
        ...

    def optimizer_state(self) -> Mapping[str, Tensor]:
        """All else that a step depends on. Live."""
        ...

    def restore(self, weights: Mapping[str, Tensor], optimizer_state: Mapping[str, Tensor]) -> None:
        """Go on exactly where these were taken. Raises BadInput when they are another model's."""
        ...


@runtime_checkable
class TrainsAdapters(Protocol):
    """A learner whose ``weights`` are adapters to others, which it leaves as they are."""

    @property
    def adapter_config(self) -> Mapping[str, object]:
        """What adapter_config.json says of them."""
        ...

    def base_weights(self) -> Mapping[str, Tensor]:
        """The others, under the names the engine knows."""
        ...


BuildLearner = Callable[[Path, RunConfig, TrainerSettings], StepLearner]
"""From the base model's folder, the run and this trainer's settings. Blocks. Raises BadInput for a model it cannot train."""


def build_learner(folder: Path, config: RunConfig, settings: TrainerSettings) -> StepLearner:
    """The torch learner, on the device the settings name. It takes its steps alone."""
    device = pick_device(settings.device)
    learner = load_learner(folder, config, device)
    log.info("learner.loaded", model=config.model.name, device=str(device))
    return learner
