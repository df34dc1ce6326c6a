"""Restoring the checkpoint that an incarnation resumes from: the newest commit's, or the one a rollback asks for.

the journal                                        restored                             appended
nothing was committed                              nothing: the base model, step 0      -
its newest commit or rollback names a checkpoint   exactly that one                     -
an earlier release's, without claims               its highest complete one             a copy of it, StepsCommitted
a rollback is requested and not done               the kept one of that step            RolledBack

A damaged checkpoint, and checkpoints that the journal does not explain, hold the run: a person decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from seamlessflow.checkpoints.checkpoint_folders import Checkpoint
from seamlessflow.checkpoints.commit_claim import CommitClaim
from seamlessflow.checkpoints.commit_history import Commit, CommitHistory
from seamlessflow.contracts import RolledBack
from seamlessflow.errors import Damaged, SeamlessFlowError
from seamlessflow_trainer.blocking_work import in_thread, in_thread_with_retry
from seamlessflow_trainer.learner.base import StepLearner

from .checkpoints import CheckpointStore, snapshot
from .step_commits import append_with_retry, commit_event

log = structlog.get_logger()

ADVICE = (
    "`seamlessflow checkpoints list {run}` shows the checkpoints; bring the files back and go on with "
    "`seamlessflow train --resume {run}`, or go back to another one with `--checkpoint STEP`"
)
"""Ways out for a run that is held."""


class DecisionNeeded(SeamlessFlowError):
    """The run cannot go on before a person decides. The message names the problem and the ways out."""


async def restore(
    claim: CommitClaim,
    run: str,
    history: CommitHistory,
    checkpoints: CheckpointStore,
    learner: StepLearner,
    *,
    keep: int,
) -> int:
    """Load the checkpoint that training resumes from; returns its step, 0 without one. ``history`` gets the appended events.

    Raises DecisionNeeded, Superseded; BadInput for a checkpoint of another model.
    """
    unexplained = await in_thread_with_retry("checkpoint.list", checkpoints.unexplained, history)
    if history.request is not None and history.wanted_step is not None:
        target = _kept_of_step(run, history, history.wanted_step, keep)
        return await _roll_back(claim, run, history, checkpoints, learner, target, history.request.request, unexplained)
    if unexplained:
        raise DecisionNeeded(
            f"the store has checkpoints that the journal does not explain, as after a power loss that took its end: "
            f"{', '.join(unexplained)}; nothing is committed beside them. {ADVICE.format(run=run)}"
        )
    newest = history.newest
    if newest is None or not newest.has_claim:
        earlier = await in_thread_with_retry("checkpoint.list", checkpoints.newest_of_earlier_release)
        if earlier is not None:
            return await _adopt(claim, run, history, checkpoints, learner, earlier)
    return 0 if newest is None else (await _load(run, newest.checkpoint, checkpoints, learner)).step


async def _roll_back(
    claim: CommitClaim,
    run: str,
    history: CommitHistory,
    checkpoints: CheckpointStore,
    learner: StepLearner,
    target: Commit,
    request: str,
    unexplained: Sequence[str],
) -> int:
    """Load a kept checkpoint and make it the newest. Unexplained checkpoints are ignored from then on."""
    checkpoint = await _load(run, target.checkpoint, checkpoints, learner)
    rolled_back = RolledBack(
        run=run,
        step=checkpoint.step,
        line=claim.line,
        nonce=claim.nonce,
        checkpoint=target.checkpoint,
        request=request,
        passed_over=tuple(unexplained),
    )
    await claim.append(rolled_back)
    taken_back = history.apply(rolled_back)
    log.warning("run.rolled_back", run=run, step=checkpoint.step, groups=len(taken_back))
    return checkpoint.step


async def _adopt(
    claim: CommitClaim, run: str, history: CommitHistory, checkpoints: CheckpointStore, learner: StepLearner, path: str
) -> int:
    """Load an earlier release's checkpoint and commit a copy of it: other trainers may still write into its folder."""
    checkpoint = replace(await _load(run, path, checkpoints, learner), line=claim.line, nonce=claim.nonce)
    copied = await in_thread(lambda: snapshot(learner.weights(), learner.optimizer_state()))
    committed = commit_event(
        run, claim, await in_thread_with_retry("checkpoint.write", checkpoints.write, checkpoint, copied), checkpoint
    )
    await append_with_retry(claim, committed)
    history.apply(committed)
    return checkpoint.step


async def _load(run: str, path: str, checkpoints: CheckpointStore, learner: StepLearner) -> Checkpoint:
    try:
        checkpoint, tensors = await in_thread_with_retry("checkpoint.read", checkpoints.read, path)
    except Damaged as wrong:
        raise DecisionNeeded(f"{wrong}. {ADVICE.format(run=run)}") from wrong
    await in_thread(learner.restore, tensors.weights, tensors.optimizer_state)
    return checkpoint


def _kept_of_step(run: str, history: CommitHistory, step: int, keep: int) -> Commit:
    """The newest commit of a step among those whose checkpoints are kept. Raises DecisionNeeded where there is none."""
    if (target := history.target_of(step, keep)) is not None:
        return target
    steps = sorted({commit.step for commit in history.targets(keep)})
    there = f"those of steps {', '.join(map(str, steps))}" if steps else "none"
    raise DecisionNeeded(f"a checkpoint of step {step} was asked for, and {there} are kept. {ADVICE.format(run=run)}")
