"""Joining a run: a claim, then what the journal and the store know, folded into where training goes on.

    base model ─▶ claim ─▶ newest commit in the journal ─▶ its checkpoint ─▶ its groups published again ─▶ model folder
                    │            └ a rollback is requested: an earlier one, RolledBack    (LoRA: the base model's weights)
                    └ no earlier claim commits from here on        ─▶ weights as head + 1 ─▶ TrainerStarted

Killed anywhere in between, joining again does the same; at worst a version number is used for the same weights twice. What
cannot be decided without a person (``DecisionNeeded``) changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from seamlessflow.checkpoints.commit_claim import CommitClaim, publish_account, read_commits
from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import TrainerStarted, WeightsPublished
from seamlessflow.errors import MalformedMessage
from seamlessflow.models import resolve_model
from seamlessflow.runtime import Context
from seamlessflow.weights import MANIFEST, model_path, publish_folder
from seamlessflow.weights.adapters import AdapterFacts
from seamlessflow.weights.staleness import VersionSteps

from .blocking_work import in_thread, in_thread_with_retry
from .config import TrainerSettings
from .learner.base import StepLearner, TrainsAdapters
from .learner.factory import BuildLearner
from .learner.model_loading import model_files, served_dtype
from .steps.checkpoint_restore import ADVICE, DecisionNeeded, restore
from .steps.checkpoints import CheckpointStore
from .weights.lora_versions import AdapterVersionBuilder, publish_base
from .weights.publisher import WeightsPublisher

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RunStart:
    """Everything a line of training begins with."""

    learner: StepLearner
    publisher: WeightsPublisher
    checkpoints: CheckpointStore
    claim: CommitClaim
    history: CommitHistory
    """What was committed until now."""
    steps: VersionSteps
    step: int
    """Optimiser steps done."""
    closed: frozenset[str]
    """Groups whose end was published."""
    dtype: str = "float32"
    """Served precision, as config.json names it."""

    @property
    def line(self) -> int:
        return self.claim.line


async def join_run(
    context: Context,
    claim: CommitClaim,
    run: str,
    config: RunConfig,
    settings: TrainerSettings,
    epoch: int,
    build: BuildLearner,
) -> RunStart | None:
    """None: training is over, or a person has to decide first.

    Raises BadInput for a model that cannot be trained, DecisionNeeded where a person has to decide how to go on, Superseded
    where another claim is newer, Unavailable for a model that cannot be fetched.
    """
    folder = await in_thread_with_retry("model.resolve", resolve_model, config.model.name, settings.model_cache)
    learner = await in_thread(build, folder, config, settings)
    await claim.take()
    history = await _read_history(context, run)  # not before: ends are published by claim, too, so from here on none is missed
    if history.is_over or history.held is not None:
        return None
    checkpoints = CheckpointStore(context.store, run, settings.work_dir)
    await in_thread_with_retry("checkpoint.bar", checkpoints.bar_earlier_releases)
    await publish_account(context.journal, run, history.newest_account)  # before a rollback takes it back
    step = await restore(claim, run, history, checkpoints, learner, keep=config.checkpoints.keep)
    await publish_account(context.journal, run, history.newest_account)
    steps = VersionSteps([(p.weights_version, p.step) for p in await _published(context, run)])
    dtype = served_dtype(folder, config.model.dtype)
    publisher = await _publisher(context, claim, run, config, learner, steps, dtype)
    await in_thread_with_retry("model.publish", _publish_model, context, run, folder, config)
    version = (await publisher.publish(learner.weights(), step=step, epoch=epoch)).weights_version
    await claim.append(TrainerStarted(run=run, line=claim.line, step=step, weights_version=version, nonce=claim.nonce))
    log.info("training.joined", line=claim.line, step=step, weights_version=version)
    named = str(dtype).removeprefix("torch.")
    return RunStart(learner, publisher, checkpoints, claim, history, steps, step, frozenset(history.closed), named)


async def _publisher(
    context: Context,
    claim: CommitClaim,
    run: str,
    config: RunConfig,
    learner: StepLearner,
    steps: VersionSteps,
    dtype: torch.dtype,
) -> WeightsPublisher:
    """What publishes this line's weights, from the newest version on."""
    publisher = WeightsPublisher(
        context.bus,
        context.store,
        context.journal,
        claim,
        run,
        steps,
        dtype,
        full_every=config.weights.full_every,
        last_step=config.algorithm.steps,
        version_builder=await _adapter_version_builder(context, run, learner, dtype),
    )
    await publisher.join()
    return publisher


async def _read_history(context: Context, run: str) -> CommitHistory:
    """Raises DecisionNeeded where a commit cannot be read: an account that is too large for a message rests in the store."""
    try:
        return await read_commits(context.bus, context.journal, run, with_groups=True)
    except MalformedMessage as wrong:
        raise DecisionNeeded(f"a commit in the journal cannot be read: {wrong}. {ADVICE.format(run=run)}") from wrong


async def _adapter_version_builder(
    context: Context, run: str, learner: StepLearner, dtype: torch.dtype
) -> AdapterVersionBuilder | None:
    """What makes versions of adapters, once their base is in the store. None: all weights are trained."""
    if not isinstance(learner, TrainsAdapters):
        return None
    path, digest = await in_thread_with_retry("base.publish", publish_base, context.store, run, learner.base_weights(), dtype)
    return AdapterVersionBuilder(AdapterFacts(path, digest, learner.adapter_config))


def _publish_model(context: Context, run: str, folder: Path, config: RunConfig) -> None:
    if not context.store.exists(f"{model_path(run)}/{MANIFEST}"):
        files = model_files(folder, served_dtype(folder, config.model.dtype))
        publish_folder(context.store, model_path(run), files, {"model": config.model.name})


async def _published(context: Context, run: str) -> list[WeightsPublished]:
    events = await context.journal.all_on(WeightsPublished, run)
    return [event for event in events if isinstance(event, WeightsPublished)]
