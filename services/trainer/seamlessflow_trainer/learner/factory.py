"""Building the torch learner of a run, and the type of a function that builds one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from seamlessflow.config.run import RunConfig
from seamlessflow_trainer.config import TrainerSettings

from .base import StepLearner
from .model_loading import load_learner, pick_device

log = structlog.get_logger()


BuildLearner = Callable[[Path, RunConfig, TrainerSettings], StepLearner]
"""From the base model's folder, the run and this trainer's settings. Blocks. Raises BadInput for a model it cannot train."""


def build_learner(folder: Path, config: RunConfig, settings: TrainerSettings) -> StepLearner:
    """The torch learner, on the device the settings name. It takes its steps alone."""
    device = pick_device(settings.device)
    learner = load_learner(folder, config, device)
    log.info("learner.loaded", model=config.model.name, device=str(device))
    return learner
