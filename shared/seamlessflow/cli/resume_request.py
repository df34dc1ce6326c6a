"""What a person wants of a run that is resumed: that a held one tries again, or that it goes back to an earlier checkpoint."""

from __future__ import annotations

from collections.abc import Callable

from ..client import Client
from ..commit_history import Commit, CommitHistory
from ..errors import ConfigError
from ..run_config import RunConfig


async def request_resume(
    client: Client, run: str, config: RunConfig, checkpoint_step: int | None, say: Callable[[str, str], None]
) -> None:
    """Publish it, where there is something to publish.

    Raises ConfigError for a checkpoint that the run cannot go back to; nothing was published then.
    """
    history = await client.commits(run) if run in await client.runs() else CommitHistory()
    if checkpoint_step is not None:
        target = _target(run, history, checkpoint_step, config.checkpoints.keep)
        await client.resume(run, checkpoint_step)
        say(f"run {run} is asked to go back to step {target.step}, checkpoint {target.checkpoint}", "yellow")
    elif history.held is not None and not history.is_over:
        await client.resume(run)
        say(f"run {run} was held, and is asked to try again: {history.held.reason}", "yellow")


def _target(run: str, history: CommitHistory, step: int, keep: int) -> Commit:
    """The newest commit of a step that a rollback may go back to. Raises ConfigError, naming those there are."""
    if history.is_over:
        how = "has ended" if history.ended else "is being ended"
        raise ConfigError(f"--checkpoint {step}: run {run} {how}; it trains no more")
    if (target := history.target_of(step, keep)) is not None:
        return target
    steps = ", ".join(str(each) for each in sorted({commit.step for commit in history.targets(keep)}))
    there = f"its kept checkpoints are of step {steps}" if steps else "it has no checkpoint yet"
    raise ConfigError(f"--checkpoint {step}: run {run} cannot go back to it; {there}. Nothing was changed")
