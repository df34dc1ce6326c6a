"""What the processes of an engine's self-check hand each other, as JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, ser_json_inf_nan="constants")
    # A logprob that is not a number is a finding, and travels like any other.


class EngineOrder(_Part):
    """What an engine is put through."""

    document: dict[str, Any]
    """A run document: its model section and its slots say which engine to build."""
    folder: Path
    """The model."""
    scratch: Path
    """An empty folder: ``base`` and ``other`` are made in it, model folders of the served precision."""
    prompts: tuple[str, ...]
    num_tokens: int
    """Sampled of each prompt."""
    temperature: float
    """Of what is drawn; the rest is greedy."""
    seed: int = 0


class Sampled(_Part):
    """One continuation, as the engine reported it."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    """Of each token: what the engine says drew it."""
    finish: str


class EngineReport(_Part):
    """What came out. Greedy continuations of the same prompts, one at a time, so that their arithmetic is the same:"""

    first: tuple[Sampled, ...]
    """By the engine as it was loaded."""
    interrupted: tuple[Sampled, ...]
    """With the same weights published again in the middle of each."""
    other: tuple[Sampled, ...]
    """After an update to other weights."""
    again: tuple[Sampled, ...]
    """After an update back to the first weights."""
    other_fresh: tuple[Sampled, ...]
    """By an engine that was loaded with the other weights."""
    drawn: tuple[Sampled, ...]
    """All at once, at ``temperature``, each with a seed, with the same weights published again in the middle."""
    num_before: tuple[int, ...]
    """Tokens that each of ``drawn`` had reported when its engine was paused."""
    num_while_paused: int
    """Tokens that were reported between pause and resume."""
    drawn_versions: tuple[int, int]
    """Before and after the update in the middle."""
    start_seconds: float
    stage_seconds: float
    """To read a version ahead, which an update does beside sampling."""
    pause_seconds: float
    """Of the update in the middle, from asking for the pause until it had resumed."""
    dtype: str
    """Served precision."""


class TrainerOrder(_Part):
    """Samples to take a step on, at learning rate 0."""

    document: dict[str, Any]
    base: Path
    other: Path
    drawn: tuple[Sampled, ...]
    temperature: float
    greedy: tuple[Sampled, ...]
    """Of ``base``; the logprobs of greedy tokens are those at temperature 1."""
    greedy_of_other: tuple[Sampled, ...]


class GapFigures(_Part):
    """Trainer against engine over some tokens, nats."""

    mean: float
    largest: float
    num_tokens: int


class TrainerReport(_Part):
    """What a trainer's forward pass makes of them."""

    drawn: GapFigures
    greedy: GapFigures
    greedy_of_other: GapFigures
    stale: GapFigures
    """What an engine would show that samples ``other`` while the trainer has ``base``: how far off is told apart."""
    num_tensors: int
    num_changed: int
    """Tensors in which a step at learning rate 0 changed a bit."""
    dtype: str
    """Computed in."""
