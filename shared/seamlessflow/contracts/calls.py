"""Calls: what an agent asked of its endpoint, and what it was answered."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from .arrays import Float32s, Int32s
from .base import Event, Record, Token, is_absent
from .episodes import EpisodeOrigin, Sampling
from .tags import Tag


class CallRequested(Event):
    """An agent called. Messages are content-addressed: known ones by digest alone, unseen ones in full."""

    episode: Token
    call: Token
    shard: int
    bucket: int
    origin: EpisodeOrigin
    tag: Tag
    messages: tuple[str, ...]
    """Digests of all messages of the request, in order. A single message of role ``prompt`` is text that no template is put
    around (legacy completions)."""
    unseen: dict[str, dict[str, Any]] = {}
    """Digest to message, for those this episode has not carried before."""
    tools: str | None = None
    """Digest of the list of tools offered, or None. In full under ``unseen`` as ``{"tools": [...]}``."""
    sampling: Sampling
    stop: tuple[str, ...] = ()
    """Texts that end the answer, and are no part of it."""
    stream: bool = False
    """Its text is hinted to ``reply`` as it is sampled."""
    logprobs: bool = False
    """The answer lists its tokens with their logprobs."""
    tool_choice: str | None = None
    min_weights_version: int = 0
    weights_version: int | None = Field(default=None, exclude_if=is_absent)
    """The version that its episode keeps, in a run with ``weights.pinned``; ``tag`` names its slot. None: the newest."""
    seed: int
    reply: str = ""
    """Inbox for the hint; the durable answer is the CallAnswered event."""


class CallError(Record):
    """A refusal, in the words the agent's client understands."""

    status: int
    code: str
    message: str
    most_tokens: int | None = None
    """How many tokens a prompt may have, where it has too many."""
    got_tokens: int | None = None
    """How many it has."""


class Usage(Record):
    """Token counts of one call."""

    prompt_tokens: int
    completion_tokens: int


class AnswerTokens(Record):
    """The sampled tokens of an answer, for clients that asked for logprobs. All three have one length."""

    token_ids: Int32s
    logprobs: Float32s
    """Of the distribution each token was drawn from; nats."""
    texts: tuple[str, ...]
    """What each token adds to the text; joined they are what was sampled, markers of tool calls included. A character of
    several tokens is the last one's."""


class CallAnswered(Event):
    """The turn is committed; its last byte may go out."""

    episode: Token
    call: Token
    message: dict[str, Any] = {}
    """The assistant's message in the chat completions form; empty on an error."""
    finish_reason: str = "stop"
    """stop, length or tool_calls."""
    stop_sequence: str | None = None
    """The text of ``CallRequested.stop`` that ended it."""
    usage: Usage | None = None
    tokens: AnswerTokens | None = None
    """Where the call asked for logprobs."""
    error: CallError | None = None


class AnswerDelta(Event):
    """Text of an answer that is being sampled. Only a hint, but of tokens that are stored already: it never changes.

    Starts are counted in characters. A reader that has less than ``start`` waits for the CallAnswered, which has all.
    """

    episode: Token
    call: Token
    reasoning_start: int = 0
    reasoning: str = ""
    content_start: int = 0
    content: str = ""


class CallAbandoned(Event):
    """The client of a call went away and did not come back in time: nobody waits for what is still to be sampled."""

    episode: Token
    call: Token
    shard: int
