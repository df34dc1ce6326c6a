"""Joining a run: what the journal and the store know, folded into where training goes on.

    base model ─▶ newest checkpoint ─▶ its commit said again ─▶ model folder ─▶ weights as head + 1 ─▶ TrainerStarted
                              (LoRA: the base model's weights before these) ─┘

Killed anywhere in between, joining again does the same; at worst a version number is used for the same weights twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from seamlessflow.ages import VersionSteps
from seamlessflow.contracts import GroupDropped, GroupTrained, WeightsPublished
from seamlessflow.models import resolve_model
from seamlessflow.run_config import RunConfig
from seamlessflow.runtime import Context
from seamlessflow.weights import MANIFEST, model_path, publish_folder
from seamlessflow.weights.adapters import AdapterFacts

from .adapter_versions import AdapterMaker, publish_base
from .building import BuildLearner, StepLearner, TrainsAdapters
from .checkpoints import CheckpointStore
from .commits import say_committed
from .config import TrainerSettings
from .living import begin_line
from .loading import model_files, served_dtype
from .publishing import WeightsPublisher
from .threads import in_thread, patiently

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Joined:
    """Everything a line of training begins with."""

    learner: StepLearner
    publisher: WeightsPublisher
    checkpoints: CheckpointStore
    steps: VersionSteps
    line: int
    step: int
    """Optimiser steps done."""
    closed: frozenset[str]
    """Groups whose end was said."""
    dtype: str = "float32"
    """Served precision, as config.json names it."""


async def join_run(
    context: Context, run: str, config: RunConfig, settings: TrainerSettings, epoch: int, build: BuildLearner
) -> Joined:
    """Raises BadInput for a model that cannot be trained, Unavailable for one that cannot be had."""
    folder = await patiently("model.resolve", resolve_model, config.model.name, settings.model_cache)
    learner = await in_thread(build, folder, config, settings)
    checkpoints = CheckpointStore(context.store, run, settings.work_dir)
    step = await _restore(context, run, learner, checkpoints)
    steps = VersionSteps([(p.weights_version, p.step) for p in await _published(context, run)])
    dtype = served_dtype(folder, config.model.dtype)
    publisher = WeightsPublisher(
        context.bus,
        context.store,
        context.speaker,
        run,
        steps,
        dtype,
        full_every=config.weights.full_every,
        last_step=config.algorithm.steps,
        maker=await _adapter_maker(context, run, learner, dtype),
    )
    await publisher.join()
    await patiently("model.publish", _publish_model, context, run, folder, config)
    published = await publisher.publish(learner.weights(), step=step, epoch=epoch)
    closed = await _closed(context, run)
    line = await begin_line(context, run, step=step, weights_version=published.weights_version)
    log.info("training.joined", line=line, step=step, weights_version=published.weights_version)
    named = str(dtype).removeprefix("torch.")
    return Joined(learner, publisher, checkpoints, steps, line, step, closed, named)


async def _restore(context: Context, run: str, learner: StepLearner, checkpoints: CheckpointStore) -> int:
    """Load the newest checkpoint and say what it means; returns its step, 0 without one."""
    found = await patiently("checkpoint.read", checkpoints.newest)
    if found is None:
        return 0
    checkpoint, tensors = found
    await in_thread(learner.restore, tensors.weights, tensors.optimizer_state)
    await say_committed(context.speaker, run, checkpoints.path(checkpoint.step), checkpoint)
    return checkpoint.step


async def _adapter_maker(context: Context, run: str, learner: StepLearner, dtype: torch.dtype) -> AdapterMaker | None:
    """What makes versions of adapters, once their base is in the store. None: all weights are trained."""
    if not isinstance(learner, TrainsAdapters):
        return None
    path, digest = await patiently("base.publish", publish_base, context.store, run, learner.base_weights(), dtype)
    return AdapterMaker(AdapterFacts(path, digest, learner.adapter_config))


def _publish_model(context: Context, run: str, folder: Path, config: RunConfig) -> None:
    if not context.store.exists(f"{model_path(run)}/{MANIFEST}"):
        files = model_files(folder, served_dtype(folder, config.model.dtype))
        publish_folder(context.store, model_path(run), files, {"model": config.model.name})


async def _published(context: Context, run: str) -> list[WeightsPublished]:
    events = await context.speaker.all_on(WeightsPublished, run)
    return [event for event in events if isinstance(event, WeightsPublished)]


async def _closed(context: Context, run: str) -> frozenset[str]:
    events = await context.speaker.all_on(GroupTrained, run)
    return frozenset(event.group for event in events if isinstance(event, GroupTrained | GroupDropped))
