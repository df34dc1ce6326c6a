"""What a trainer says of itself: what it is doing, and that it cannot go on."""

from __future__ import annotations

import structlog

from seamlessflow.contracts import Service, StepsCommitted, TrainerStarted, TrainingEnded
from seamlessflow.runtime import Context, failure_words, stop_run
from seamlessflow.weights.readers import read_head

log = structlog.get_logger()

STATE_LETTERS = 300


def say_state(context: Context, run: str, state: str) -> None:
    """For ``seamlessflow status``: what the trainer does or waits for."""
    context.presence.update(state=f"{run}: {state}"[:STATE_LETTERS])


async def cannot_go_on(context: Context, run: str, reason: str) -> None:
    """Trying again would end the same: ask for an orderly end, and say why."""
    log.error("training.failed", run=run, reason=reason)
    say_state(context, run, f"failed: {reason}")
    await stop_run(context.speaker, Service.TRAINER, run, reason)


async def cannot_begin(context: Context, run: str, reason: str) -> None:
    """This line cannot begin. What an earlier one committed stands, so that is where training ended."""
    await cannot_go_on(context, run, reason)
    speaker = context.speaker
    if await speaker.last(TrainerStarted, run) is None:
        return  # the scheduler waits for no trainer that never began
    committed = await speaker.last(StepsCommitted, run)
    step = 0 if committed is None else committed.step
    head = await read_head(context.bus, run)
    version = 0 if head is None else head.weights_version
    failure = failure_words(Service.TRAINER, reason)
    await speaker.say(TrainingEnded(run=run, step=step, weights_version=version, failure=failure))
    log.info("training.ended", run=run, step=step, weights_version=version)
