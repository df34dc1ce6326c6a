"""Calls: what an agent asked of its endpoint, and what it was answered."""

from __future__ import annotations

from typing import Any

from .base import Event, Record, Token
from .episodes import EpisodeOrigin, Sampling


class CallRequested(Event):
    """An agent called. Messages are content-addressed: known ones by digest alone, unseen ones in full."""

    episode: Token
    call: Token
    shard: int
    bucket: int
    origin: EpisodeOrigin
    tag: Token
    messages: tuple[str, ...]
    """Digests of all messages of the request, in order."""
    unseen: dict[str, dict[str, Any]] = {}
    """Digest to message, for those this episode has not carried before."""
    tools: str | None = None
    """Digest of the list of tools offered, or None. In full under ``unseen`` as ``{"tools": [...]}``."""
    sampling: Sampling
    stop: tuple[str, ...] = ()
    tool_choice: str | None = None
    min_weights_version: int = 0
    seed: int
    reply: str = ""
    """Inbox for the hint; the durable answer is the CallAnswered event."""


class CallError(Record):
    """A refusal, in the words the agent's client understands."""

    status: int
    code: str
    message: str


class Usage(Record):
    """Token counts of one call."""

    prompt_tokens: int
    completion_tokens: int


class CallAnswered(Event):
    """The turn is committed; its last byte may go out."""

    episode: Token
    call: Token
    message: dict[str, Any] = {}
    """The assistant's message in the chat completions form; empty on an error."""
    finish_reason: str = "stop"
    """stop, length or tool_calls."""
    usage: Usage | None = None
    error: CallError | None = None
