"""The interface of a dialect: parsing one API's requests, and writing its answers as bodies and events.

All dialects make the same call to the manager: messages and tools in the chat completions form, and get a ``CallAnswered``
whose message has that form, too. So a conversation has one tree in all dialects. Text that is no
conversation (``completions``) is one message of role ``prompt``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from seamlessflow.contracts import CallAnswered
from seamlessflow_agent_runner.gateway.api_errors import ApiError


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A valid request. Messages and tools are in the chat completions form."""

    model: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: str | None = None
    """``auto``, ``none`` or None."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    """Texts that end the answer, see ``stop_texts``."""
    stream: bool = False
    logprobs: bool = False
    """The answer lists its tokens."""
    goes_on_from: str | None = None
    """A call of this session: its request and answer stand between the instructions and the other messages."""
    num_instructions: int = 0
    """The number of first messages that hold for this call only."""
    is_remembered: bool = False
    """Later calls may leave out the messages up to here."""
    one_call_only: bool = False
    """Of several tool calls in the answer only the first is handed out."""
    notes: tuple[str, ...] = ()
    """Request fields that are not followed, for the log: a handful of texts, the same for all requests."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Values that only the dialect itself needs to answer."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Fields that all parts of one answer share."""

    call: str
    created: int
    """Unix seconds."""
    asked: ParsedRequest


class Stream(Protocol):
    """One streamed answer. Each method returns the events to send now; they are called in this order."""

    def opening(self) -> bytes:
        """The first events, before any text is known."""
        ...

    def idle(self) -> bytes:
        """A data event that adds nothing: it resets idle timers that a comment line does not."""
        ...

    def more(self, reasoning: str, content: str) -> bytes:
        """New text behind the text before; one of both may be empty. Reasoning never comes after content."""
        ...

    def ending(self, answer: CallAnswered) -> bytes:
        """All events after the texts, which ``more`` has sent completely: tool calls, reason of the end, usage."""
        ...

    def failing(self, error: ApiError) -> bytes:
        """The error event instead of the ending, as status 200 has gone out; the client raises it."""
        ...


class ApiDialect(Protocol):
    """One API that agents use; pure. A refusal is an ``ApiError``, written in the dialect's own form."""

    path: str
    """The path of its POST requests."""

    def parse(self, raw: bytes) -> ParsedRequest:
        """The request in a body. Raises ApiError 400 that names the change to make."""
        ...

    def whole(self, frame: Frame, answer: CallAnswered) -> dict[str, Any]:
        """The body of a whole answer."""
        ...

    def stream(self, frame: Frame) -> Stream:
        """A streamed answer, from its first event on."""
        ...

    def error_body(self, error: ApiError) -> dict[str, Any]:
        """The body of a refusal."""
        ...


def event(content: dict[str, Any], name: str | None = None) -> bytes:
    """One server-sent event; some dialects name them."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
