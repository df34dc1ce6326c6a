"""Groups and episodes: a task is done several times, and each doing is an episode that may need several attempts."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from .base import Event, Record, Token
from .tags import Tag


class EpisodeStatus(StrEnum):
    """How an attempt ended. Only ``completed`` has a reward."""

    COMPLETED = "completed"
    """The agent exited with 0 and the verifier judged it."""
    AGENT_FAILED = "agent_failed"
    """The agent exited with another code, or raised."""
    DEADLINE = "deadline"
    """Killed at its deadline."""
    LIMIT = "limit"
    """Killed for memory or output beyond its limit."""
    VERIFIER_FAILED = "verifier_failed"
    """The verifier raised, hung, or answered something that is not a finite number."""
    RUNNER_LOST = "runner_lost"
    """The runner died or stopped, and the agent with it: no failure of the agent."""
    NOT_STARTED = "not_started"
    """The agent could not be started at all: command or module missing."""
    RUN_ENDED = "run_ended"
    """The run was stopped under it."""


class Sampling(Record):
    """What an agent's calls may ask for, decided by the run and not by the agent."""

    temperature: float = 1.0
    """0.0: greedy."""
    top_p: float = 1.0
    max_tokens: int = 256
    """Upper bound of one call; an agent may ask for less."""


class EpisodeOrigin(Record):
    """Where an episode comes from; travels with its facts so that no reader needs another's state."""

    group: Token
    task: Token
    env: Token
    index: int
    """Which member of its group, from 0."""
    attempt: int
    """From 0."""
    evaluation: str | None = None
    """The evaluation round, or None for training."""


class GroupAdmitted(Event):
    """A task was admitted within the staleness bound and expanded."""

    group: Token
    task: Token
    env: Token
    num_episodes: int
    evaluation: str | None = None
    step: int
    """Optimiser steps done when it was admitted."""
    bucket: int = 0
    """Affinity bucket of all its episodes where they are one call each, so that prompts are what they share."""
    expected_tokens: int | None = None
    """What one of its episodes should take to sample, where the run tells long ones from others (``fleet.long_tail``) and that
    is known."""
    long: bool = False
    """Whether that is much more than others take: its episodes are opened first, and their generations pulled first."""


class EpisodeOpened(Event):
    """One attempt at one episode is to be run by whoever holds its environment tag."""

    episode: Token
    """``<id>-<attempt>``."""
    origin: EpisodeOrigin
    shard: int
    bucket: int
    """Affinity bucket of its first call: its group's, or, where its environment's episodes take several calls, the one that is
    nobody's (``streams.commons``); who samples that call says in which bucket the next ones are."""
    env: Token
    prompt: str
    data: dict[str, Any] = {}
    sampling: Sampling
    tag: Tag = "rollout"
    """What the node that samples its generations must have."""
    min_weights_version: int = 0
    """Its tokens may be sampled by this version or a later one."""
    seed: int
    expected_tokens: int | None = None
    """As its group's; whether that is long is part of ``tag``."""


class EpisodeStarted(Event):
    """A runner began the attempt. Said once: who finds it said already knows that an earlier runner died."""

    episode: Token
    runner: Token


class EpisodeEnded(Event):
    """The attempt is over. Said once; calls that come later are refused with 409."""

    episode: Token
    shard: int
    origin: EpisodeOrigin
    status: EpisodeStatus
    reason: str = ""
    """For people: what happened, when status is not completed."""
    reward: float | None = None
    """None: there is no reward, which is not a reward of 0."""
    num_calls: int = 0
    undelivered: tuple[str, ...] = ()
    """Calls whose answer never reached the agent; not trained."""
    wall_seconds: float = 0.0
    sampled_tokens: int | None = None
    """Of all its answers, as far as its runner heard them. None: not known."""


MAX_LOST_ATTEMPTS = 10
"""Attempts in all after which a lost one is not followed by another, where ``max_attempts`` is not larger itself."""


def is_final(status: EpisodeStatus, attempt: int, max_attempts: int) -> bool:
    """Whether no further attempt follows: it completed, or attempts are used up, or the run is over.

    ``attempt`` counts from 0. An attempt that was lost with its runner is always followed by another, within reason; one
    that failed, only while fewer than ``max_attempts`` were made. Scheduler (opens attempts) and trainer (waits for them)
    decide by this one rule, which looks at nothing but this attempt, so that they agree whatever either has heard before.
    """
    if status in (EpisodeStatus.COMPLETED, EpisodeStatus.RUN_ENDED):
        return True
    limit = max(max_attempts, MAX_LOST_ATTEMPTS) if status is EpisodeStatus.RUNNER_LOST else max_attempts
    return attempt + 1 >= limit
