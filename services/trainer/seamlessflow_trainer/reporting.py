"""What a trainer says of itself: what it is doing, and that it cannot go on."""

from __future__ import annotations

import structlog

from seamlessflow.checkpoints.commit_claim import CommitClaim, read_commits
from seamlessflow.contracts import Service, TrainerStarted, TrainingEnded
from seamlessflow.runtime import Context, failure_reason, stop_run
from seamlessflow.weights.reader_leases import read_head

log = structlog.get_logger()

STATE_LETTERS = 300


def set_state(context: Context, run: str, state: str) -> None:
    """For ``seamlessflow status``: what the trainer does or waits for."""
    context.presence.update(state=f"{run}: {state}"[:STATE_LETTERS])


async def report_failure(context: Context, claim: CommitClaim, run: str, reason: str) -> None:
    """Trying again would end the same: ask for an orderly end, with the reason.

    Raises Superseded, and asks for nothing, where another claim is newer. A stop is on a stream of its own, so it cannot be
    compared with the claim: a trainer that is superseded between this look and the stop still ends the run, in order.
    """
    await claim.check()
    log.error("training.failed", run=run, reason=reason)
    set_state(context, run, f"failed: {reason}")
    await stop_run(context.journal, Service.TRAINER, run, reason)


async def report_failed_start(context: Context, claim: CommitClaim, run: str, reason: str) -> None:
    """This line cannot begin. What was committed stands, so that is where training ended. Raises Superseded."""
    if not claim.nonce:
        await claim.take()
    await report_failure(context, claim, run, reason)
    journal = context.journal
    if await journal.last(TrainerStarted, run) is None:
        return  # the scheduler waits for no trainer that never began
    newest = (await read_commits(context.bus, journal, run)).newest
    step = 0 if newest is None else newest.step
    head = await read_head(context.bus, run)
    version = 0 if head is None else head.weights_version
    failure = failure_reason(Service.TRAINER, reason)
    ended = TrainingEnded(run=run, step=step, weights_version=version, failure=failure, nonce=claim.nonce)
    await claim.append(ended)
    log.info("training.ended", run=run, step=step, weights_version=version)
