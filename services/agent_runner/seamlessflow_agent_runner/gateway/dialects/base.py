"""What a dialect is: how one kind of client asks, and in which bodies and events it is answered.

All dialects ask one thing of the manager: messages and tools in the chat completions form, and get a ``CallAnswered``
whose message has that form, too. So a conversation has one tree, whatever its turns were spoken in. Text that is no
conversation (``completions``) is one message of role ``prompt``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from seamlessflow.contracts import CallAnswered
from seamlessflow_agent_runner.gateway.api_errors import ApiError


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be answered. Messages and tools in the chat completions form."""

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
    """A call of this session: what it was asked and answered stands between the instructions and the other messages."""
    num_instructions: int = 0
    """So many of the first messages hold for this call only."""
    is_remembered: bool = False
    """Later calls may leave out what was said up to here."""
    one_call_only: bool = False
    """Of several tool calls in the answer only the first is handed out."""
    notes: tuple[str, ...] = ()
    """What its client asked for and does not get, for the log. A handful of texts, the same for all requests."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What only the dialect itself needs to answer."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What is the same in every part of one answer."""

    call: str
    created: int
    """Unix seconds."""
    asked: Asked


class Stream(Protocol):
    """One answer as it goes out. Each method gives the events to send now, and is called in this order."""

    def opening(self) -> bytes:
        """Before anything is known."""
        ...

    def idle(self) -> bytes:
        """A data event that adds nothing: it resets idle timers that a comment line does not."""
        ...

    def more(self, reasoning: str, content: str) -> bytes:
        """Text behind what was said before; one of both may be empty. Reasoning never comes after content."""
        ...

    def ending(self, answer: CallAnswered) -> bytes:
        """All but the texts, which ``more`` has said to their ends: tool calls, why it ended, usage; to the very last event."""
        ...

    def failing(self, error: ApiError) -> bytes:
        """Instead of the ending, as status 200 has gone out: its client raises it."""
        ...


class Dialect(Protocol):
    """One file each; pure. A refusal is an ``ApiError``, written in the dialect's own form."""

    path: str
    """Where its clients post."""

    def parse(self, raw: bytes) -> Asked:
        """The request in a body. Raises ApiError 400 that says what to change."""
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
