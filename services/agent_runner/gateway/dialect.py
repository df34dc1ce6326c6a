"""What a dialect is: how one kind of client asks, and in which bodies and events it is answered.

All dialects ask one thing of the manager: messages and tools in the chat completions form, and get a ``CallAnswered``
whose message has that form, too. So a conversation has one tree, whatever its turns were spoken in.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import msgpack

from seamlessflow.contracts import CallAnswered

from .errors import ApiError, bad_request


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be answered. Messages and tools in the chat completions form."""

    model: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: str | None = None
    """``auto``, ``none`` or None."""
    max_tokens: int | None = None
    stream: bool = False
    goes_on_from: str | None = None
    """A call of this session: what it was asked and answered stands between the instructions and the other messages."""
    num_instructions: int = 0
    """So many of the first messages hold for this call only."""
    is_remembered: bool = False
    """Later calls may leave out what was said up to here."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What only the dialect itself needs to answer."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What is the same in every part of one answer."""

    call: str
    created: int
    """Unix seconds."""
    asked: Asked
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """Of the events of this one stream, for dialects that number them."""


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

    def opening(self, frame: Frame) -> bytes:
        """The events before anything is known."""
        ...

    def idle(self, frame: Frame) -> bytes:
        """A data event that adds nothing: it resets idle timers that a comment line does not."""
        ...

    def rest(self, frame: Frame, answer: CallAnswered) -> Iterator[bytes]:
        """The events of an answer, to the stream's very end."""
        ...

    def error_body(self, error: ApiError) -> dict[str, Any]:
        """The body of a refusal."""
        ...

    def error_event(self, frame: Frame, error: ApiError) -> bytes:
        """What ends a stream whose status 200 has gone out; its client raises it."""
        ...


def json_object(raw: bytes) -> dict[str, Any]:
    """A request's body. Raises ApiError 400 for what is no JSON object or could not travel on."""

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        body = json.loads(raw, parse_constant=refuse_constant, parse_float=_finite)
        msgpack.packb(body)  # what cannot travel must be refused here: lone surrogates, integers beyond 64 bits, depth
    except (ValueError, OverflowError, RecursionError) as wrong:
        raise bad_request(f"the body must be JSON of ordinary text and numbers: {wrong}", code="invalid_json") from wrong
    if not isinstance(body, dict):
        raise bad_request(f"the body must be a JSON object, got {kind_of(body)}", code="invalid_json")
    return body


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError("a number is beyond what a double holds")
    return value


def model_and_stream(body: dict[str, Any]) -> tuple[str, bool]:
    """Two fields that every dialect has. Raises ApiError 400."""
    model, stream = body.get("model"), body.get("stream")
    if not isinstance(model, str) or not model:
        raise bad_request("model must be the name of a model, see GET /v1/models", "model")
    if stream not in (None, True, False):
        raise bad_request("stream must be true or false", "stream")
    return model, bool(stream)


def whole_number(body: dict[str, Any], key: str) -> int | None:
    """An optional count of tokens. Raises ApiError 400."""
    value = body.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise bad_request(f"{key} must be a whole number of at least 1, got {value!r}", key)
    return value


def kind_of(value: Any) -> str:
    """What JSON calls a value, for messages."""
    names: dict[type, str] = {dict: "an object", list: "a list", str: "text", type(None): "null"}
    kind: type = type(value)
    return names.get(kind, "a number or a truth value")


def event(content: dict[str, Any], name: str | None = None) -> bytes:
    """One server-sent event; some dialects name them."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


NUM_PIECES = 4
"""A finished text is sent in at most this many parts."""


def pieces(text: str) -> list[str]:
    """The text in at most NUM_PIECES parts of about equal length; joined they are the text."""
    if not text:
        return []
    length = -(-len(text) // NUM_PIECES)
    return [text[start : start + length] for start in range(0, len(text), length)]
