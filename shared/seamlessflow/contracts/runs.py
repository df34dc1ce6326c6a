"""A run from request to end."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .base import Event, RawBytes, Token, is_absent


class RunRequested(Event):
    """Somebody wants a run. The leading scheduler makes its streams and says RunStarted."""

    document: dict[str, Any]
    """The whole run configuration (seamlessflow.run_config.RunConfig as JSON)."""


class RunStopRequested(Event):
    """Somebody wants the run to end now, orderly: no new groups, what is in flight is dropped as ``run_ended``."""

    reason: str = "requested"


class RunStarted(Event):
    """Streams, queues and consumers exist. The first message of a journal."""

    document: dict[str, Any]


class RunHeld(Event):
    """The run cannot go on until a person decides: nothing is admitted and no device is held, and nothing is lost."""

    reason: str
    """What is wrong and what can be done, for people."""
    nonce: Token
    """Of the claim under which it was found."""


class ResumeRequested(Event):
    """A person wants the run to go on: one that is held tries again, or goes back to an earlier checkpoint."""

    request: Token
    """New for each request."""
    checkpoint_step: int | None = None
    """Go back to the checkpoint of this step. None: go on as it stands."""


class RunEnded(Event):
    """The run is over; its queues go away and its journal stays."""

    reason: str
    """completed, tasks_ended, nothing_left_to_learn, journal_full, stopped, or what failed."""
    steps: int
    nonce: str = Field(default="", exclude_if=is_absent)
    """Of the claim under which it was published. Empty: an earlier release, which had no claims."""


class TaskSubmitted(Event):
    """One prompt or job a user wants agents to do; becomes one group of episodes."""

    task: Token
    """Unique within the run; the same id again is the same task."""
    env: Token
    """Environment tag: which kind of agent does it."""
    prompt: str = ""
    """What the agent is asked."""
    data: dict[str, Any] = {}
    """For the verifier, and for agents that want more than the prompt. JSON values."""
    evaluation: str | None = None
    """None: train on it. 'before' or 'after': held out, done once in that evaluation round with greedy sampling."""
    expected_tokens: int | None = None
    """How many tokens one episode of it may take to sample, if its author can tell: tasks that take much more than others may
    be done first (``fleet.long_tail``). None: what the same prompt took before."""


class TasksEnded(Event):
    """No more tasks will come: the run ends when all groups are closed."""


class EvaluationEnded(Event):
    """All tasks of one evaluation round were done."""

    round: Token
    num_episodes: int
    num_failed: int
    """Episodes without a reward; they count as 0 in the accuracy, and are shown."""
    mean_reward: dict[str, float]
    """Per environment tag, over all its episodes."""
    weights_versions: tuple[int, ...]
    """Every version that sampled a token of this round."""
    wall_seconds: float


class DeadLetter(Event):
    """A message that could not be handled, kept with its reason."""

    run: Token
    """The run, or ``ctl`` for a message of no run."""

    service: Token
    letter: Token
    """Id: stable for one message, so that a repeat is stored once."""
    reason: str
    subject: str
    payload: RawBytes
    headers: dict[str, str] = {}
