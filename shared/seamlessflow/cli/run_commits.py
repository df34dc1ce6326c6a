"""A run's commits as its journal has them now, and the request to go on: what ``train --resume`` and ``checkpoints`` share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..client import Client
from ..commit_history import Commit, CommitHistory
from ..contracts import (
    Event,
    ResumeRequested,
    RolledBack,
    RunEnded,
    RunHeld,
    StepsCommitted,
    TrainerClaimed,
)
from ..errors import ConfigError
from ..run_config import RunConfig
from ..run_view import held_after

READS: tuple[type[Event], ...] = (TrainerClaimed, StepsCommitted, RolledBack, RunHeld, ResumeRequested, RunEnded)


@dataclass
class RunCommits:
    """A fold over ``READS``."""

    history: CommitHistory = field(default_factory=CommitHistory)
    held: RunHeld | None = None
    """None: the run is not held."""
    ended: RunEnded | None = None

    @property
    def is_over(self) -> bool:
        """Whether no trainer goes on with it: it ended, or a scheduler is closing it."""
        return self.ended is not None or self.history.is_closing

    def apply(self, event: Event, time: float) -> None:
        """Take one event in, stored at ``time`` (Unix seconds)."""
        if self.history.accepts(event):
            self.held = held_after(event, self.held)
            self.ended = event if isinstance(event, RunEnded) else self.ended
            self.history.apply(event, time)


async def read_run_commits(client: Client, run: str) -> RunCommits:
    """Of a run that has a journal. Reads only what it needs."""
    found = RunCommits()
    async for record, event in client.events(run, only=READS):
        found.apply(event, record.time)
    return found


async def request_resume(
    client: Client, run: str, config: RunConfig, checkpoint_step: int | None, say: Callable[[str, str], None]
) -> None:
    """Publish what a person wants of a run that is resumed: to go back to a checkpoint, or that a held one tries again.

    Raises ConfigError for a checkpoint that it cannot go back to; nothing was published then.
    """
    found = await read_run_commits(client, run) if run in await client.runs() else RunCommits()
    if checkpoint_step is not None:
        target = _target(run, found, checkpoint_step, config.checkpoints.keep)
        await client.resume(run, checkpoint_step)
        say(f"run {run} is asked to go back to step {target.step}, checkpoint {target.checkpoint}", "yellow")
    elif found.held is not None and not found.is_over:
        await client.resume(run)
        say(f"run {run} was held, and is asked to try again: {found.held.reason}", "yellow")


def _target(run: str, found: RunCommits, step: int, keep: int) -> Commit:
    """The newest commit of a step that a rollback may go back to. Raises ConfigError, naming those there are."""
    if found.is_over:
        raise ConfigError(
            f"--checkpoint {step}: run {run} {'has ended' if found.ended else 'is being ended'}; it trains no more"
        )
    targets = found.history.targets(keep)
    for commit in reversed(targets):
        if commit.step == step:
            return commit
    steps = ", ".join(str(each) for each in sorted({commit.step for commit in targets}))
    there = f"its kept checkpoints are of step {steps}" if steps else "it has no checkpoint yet"
    raise ConfigError(f"--checkpoint {step}: run {run} cannot go back to it; {there}. Nothing was changed")
