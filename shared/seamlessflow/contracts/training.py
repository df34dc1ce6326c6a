"""Steps, groups and weights: what the trainer publishes, and the claims that fence commits."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from .base import Event, Record, Token, is_absent


class DropReason(StrEnum):
    """Why sampled tokens were not trained."""

    FAILED = "failed"
    """Too few members of the group completed."""
    ZERO_VARIANCE = "zero_variance"
    """Every member got the same reward: nothing to learn."""
    STALE = "stale"
    """Every token was too old."""
    RUN_ENDED = "run_ended"


class MaskReason(StrEnum):
    """Why a token of a trained group took no part in the loss."""

    STALE = "stale"
    """Sampled more optimiser steps ago than the bound."""
    TOO_LONG = "too_long"
    """Beyond the trainer's longest sequence."""


class EpisodeTokens(Record):
    """Where one episode's sampled tokens went in a trained group."""

    episode: Token
    trained: int
    masked: dict[str, int] = {}
    """By MaskReason."""


class BatchReady(Event):
    """Enough groups wait for step ``step``: the trainer wants its device."""

    step: int
    line: int
    num_groups: int
    num_tokens: int


class StepTaken(Event):
    """One optimiser step was done. It counts as committed only when StepsCommitted covers it."""

    step: int
    """From 1."""
    line: int
    """Which life of the trainer: raised at every start, so that repeated step numbers are told apart."""
    weights_version: int
    groups: tuple[str, ...]
    metrics: dict[str, float]
    """See docs/operations.md for the table of names and units."""


class TrainerClaimed(Event):
    """A life of the trainer, or a scheduler that closes the run, took over the run's commits.

    Appended with the expected last sequence of the subject that it shares with StepsCommitted and RolledBack. Earlier claims
    can no longer commit, drop a group or end the training.
    """

    line: int
    """One more than the newest line of the run."""
    nonce: Token
    """New for each claim."""
    by: str
    """Service and instance, for people."""
    closes: bool = False
    """A scheduler closes the run for good: no trainer claims after this."""


class TrainedGroup(Record):
    """One group's part of a commit."""

    group: Token
    step: int
    """The step that it was trained in."""
    episodes: tuple[EpisodeTokens, ...]


class GroupTrained(Event):
    """The group was part of a committed step. The first closing of a group counts."""

    group: Token
    step: int
    episodes: tuple[EpisodeTokens, ...]


class GroupDropped(Event):
    """The group will not be trained. The first closing of a group counts."""

    group: Token
    reason: DropReason
    nonce: str = Field(default="", exclude_if=is_absent)
    """Of the claim under which it was published. Empty: an earlier release, which had no claims."""


class StepsCommitted(Event):
    """A durable checkpoint holds everything up to ``step``. This append is the commit: what is not in one is not trained."""

    step: int
    line: int
    checkpoint: str
    """Path below the run's store."""
    groups: tuple[str, ...]
    """Groups first covered by this checkpoint."""
    nonce: str = Field(default="", exclude_if=is_absent)
    """Of the claim it was committed under. Empty: an earlier release, which had no claims."""
    account: tuple[TrainedGroup, ...] = Field(default=(), exclude_if=is_absent)
    """Where the sampled tokens of ``groups`` went. Empty in an earlier release's: GroupTrained has it."""


class RolledBack(Event):
    """The run goes on from an earlier checkpoint, as a person asked; what was committed after it is trained in no weights."""

    step: int
    line: int
    nonce: Token
    checkpoint: str
    """Path below the run's store. It is the newest commit from here on."""
    request: Token
    """The ResumeRequested that asked for it."""
    passed_over: tuple[str, ...] = ()
    """Complete checkpoints in the store that the journal does not explain; they count no more."""


class TrainerStarted(Event):
    """A trainer began a line: steps after ``step`` of earlier lines are abandoned."""

    line: int
    step: int
    weights_version: int
    nonce: str = Field(default="", exclude_if=is_absent)
    """Of the claim under which it was published. Empty: an earlier release, which had no claims."""


class TrainingEndRequested(Event):
    """No further batch can be filled, or the run is to stop: finish, commit, and say TrainingEnded."""

    reason: str
    train_rest: bool
    """True: one last, smaller step on the groups that are complete. False: drop them as run_ended."""


class TrainingEnded(Event):
    """The last step is committed and its weights are published."""

    step: int
    weights_version: int
    failure: str = ""
    """Why the trainer cannot go on, for people: the run ends with it. Empty: nothing failed."""
    nonce: str = Field(default="", exclude_if=is_absent)
    """Of the claim under which it was published. Empty: an earlier release, which had no claims."""


class WeightsPublished(Event):
    """A version is complete in the store, manifest included."""

    weights_version: int
    step: int
    path: str
    """Folder below the run's store."""
    num_bytes: int
    wall_seconds: float


class WeightsLoaded(Event):
    """A worker samples with this version from here on."""

    weights_version: int
    worker: Token
    fetch_seconds: float
    """While sampling went on."""
    pause_seconds: float
    """While nothing was sampled because of it. What a device was lent to training is not part of it: see the roles."""
    num_frozen: int
    """Generations that were held over the change."""
    node: str = ""
    """Where the worker is: what ties its generations to a device. Empty: a writer of before this field."""
