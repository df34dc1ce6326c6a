"""Generations: units of work for an engine. The id of a generation is the id of its call.

All that is said about one generation is appended to one subject with its expected last sequence: claim, segments, end.
That order is the fence, see docs/lifecycles.md. What is sampled at once needs no claim: its first segment names the worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from .arrays import Float32s, Int32s
from .base import Event, Token, is_absent
from .episodes import Sampling
from .tags import Tag


class GenerationRequested(Event):
    """Continue these ids. The prompt is all tokens of ``parent`` (prompt and sampled) followed by ``suffix``."""

    episode: Token
    generation: Token
    tag: Tag
    bucket: int
    shard: int
    parent: str | None = None
    """None: ``suffix`` is the whole prompt."""
    parent_tokens: int = 0
    """Length of the parent's tokens, so that a reader can tell that it has them all."""
    suffix: Int32s
    sampling: Sampling
    """``max_tokens`` is the budget of the whole generation, however often it is handed on."""
    stop_token_ids: tuple[int, ...]
    stop: tuple[str, ...] = ()
    """Texts that end it, wherever they come in what it samples; the token that completes one is its last."""
    stream: bool = False
    """Somebody reads along: segments are said as early as they can be."""
    min_weights_version: int = 0
    weights_version: int | None = Field(default=None, exclude_if=is_absent)
    """Sample under this version, where it can still be had. None: under the newest, whichever that is at each token."""
    seed: int


class GenerationClaimed(Event):
    """A worker took it. Segments of an earlier claim are refused from here on."""

    episode: Token
    generation: Token
    shard: int
    worker: Token
    nonce: Token
    """New for each delivery; part of the ids of what follows."""
    start: int
    """Tokens sampled under earlier claims, which are kept."""


class GenerationFinish(StrEnum):
    """Why sampling ended."""

    STOP = "stop"
    """A stop token or a stop text."""
    LENGTH = "length"
    CONTEXT = "context"
    """The prompt alone fills the model's context: nothing was sampled."""
    CANCELLED = "cancelled"
    """Its call was abandoned; what was sampled is kept."""
    REFUSED = "refused"
    """The engine cannot do it, see the dead letter: the call gets an error, and what was sampled before is not used."""


class SegmentSampled(Event):
    """Tokens sampled in one go under one weights version."""

    episode: Token
    generation: Token
    shard: int
    nonce: Token
    start: int
    """Offset of the first token within the generation."""
    token_ids: Int32s
    logprobs: Float32s
    """Of the distribution each token was drawn from, after temperature; nats."""
    weights_version: int
    finish: GenerationFinish | None = None
    """Set: nothing more will be sampled; this segment is the last, and no GenerationEnded follows."""
    worker: Token | None = None
    """Set on a first segment that was there before its claim was said: it is the claim as well, and none was."""
    bucket: int | None = Field(default=None, exclude_if=is_absent)
    """With ``finish``: the affinity bucket in which the next generations of its episode find this worker, which has its
    context. None: the one that this generation was in."""


class GenerationEnded(Event):
    """Nothing more will be sampled for it; of an end that comes when every token is said already, or none was sampled."""

    episode: Token
    generation: Token
    shard: int
    nonce: Token
    finish: GenerationFinish
    num_tokens: int
    bucket: int | None = Field(default=None, exclude_if=is_absent)
    """As that of a last segment."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who took a generation over, behind which token."""

    generation: str
    worker: str
    start: int


def claim_of(event: Event) -> Claim | None:
    """What an event claims: a GenerationClaimed, or a segment that came before one."""
    match event:
        case GenerationClaimed() | SegmentSampled(worker=str()):
            assert event.worker is not None
            return Claim(event.generation, event.worker, event.start)
    return None
