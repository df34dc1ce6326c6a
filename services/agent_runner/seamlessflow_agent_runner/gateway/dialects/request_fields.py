"""Fields of request bodies that several dialects have, and the JSON they come in. Pure.

Invalid values raise ApiError 400 that names the change to make, and shows little of the value.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Sequence
from typing import Any, NoReturn

import msgpack

from seamlessflow.contracts import CallAnswered
from seamlessflow_agent_runner.gateway.api_errors import bad_request

from .base import ParsedRequest

MAX_DEPTH = 100
"""Levels of lists and objects in a body. Far more than any agent nests, and so few that nothing which walks through a body
recursively, here or in another service, comes near its limits."""


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
    if _is_deeper(body, MAX_DEPTH):
        raise bad_request(f"the body must nest at most {MAX_DEPTH} lists and objects in each other", code="invalid_json")
    return body


def _is_deeper(body: dict[str, Any], levels: int) -> bool:
    level: list[Any] = [body]
    for _ in range(levels):
        inner: list[Any] = []
        for each in level:
            inner += [part for part in (each.values() if type(each) is dict else each) if type(part) in _CONTAINERS]
        if not inner:
            return False
        level = inner
    return True


_CONTAINERS = frozenset((dict, list))


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
        raise bad_request(f"{key} must be a whole number of at least 1, got {shown(value)}", key)
    return value


MAX_STOP_TEXTS = 16
"""More than any API allows, and few enough that sampling is not slowed."""


def stop_texts(given: Any, key: str) -> tuple[str, ...]:
    """Texts that end an answer: one, or a list of them. Raises ApiError 400."""
    listed = [] if given is None else given if isinstance(given, list) else [given]
    if len(listed) > MAX_STOP_TEXTS or not all(isinstance(text, str) for text in listed):
        raise bad_request(f"{key} must be a text or a list of at most {MAX_STOP_TEXTS} texts", key)
    return tuple(text for text in listed if text)


def kind_of(value: Any) -> str:
    """What JSON calls a value, for messages."""
    names: dict[type, str] = {dict: "an object", list: "a list", str: "text", type(None): "null"}
    kind: type = type(value)
    return names.get(kind, "a number or a truth value")


MAX_SHOWN_CHARACTERS = 100
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = MAX_SHOWN_CHARACTERS


def shown(value: Any) -> str:
    """A value of a request for messages, however long it is."""
    text = _SHORT.repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[: MAX_SHOWN_CHARACTERS - 3]}..."


# Tools. Only constrained decoding could make a model call a tool, or a certain one. Agents send such demands by default and
# cope with a model that does not obey, so a demand is taken as ``auto`` with a note instead of ending the agent. A limit of one
# call at a time needs no constrained decoding: of several calls in a turn, only the first is handed out.

Message = dict[str, Any]

CONSTRAINED = "it needs constrained decoding, which is not supported yet"
FREE_CHOICE = f"a tool_choice that demands a call is taken as auto: {CONSTRAINED}"
HOSTED = "only functions that the agent describes are offered to the model; other tools cannot be run here"
CHOICES = ("auto", "none")
DEMANDS = ("required", "any")
MAX_TOOLS = 4096
"""More than fit into any prompt, and few enough that other requests wait only briefly while one is read."""


def listed_tools(given: Any) -> list[Any]:
    """The list in ``tools``, empty where there is none. Raises ApiError 400."""
    if given is not None and not isinstance(given, list):
        raise bad_request(f"tools must be a list, got {kind_of(given)}", "tools")
    if given and len(given) > MAX_TOOLS:
        raise bad_request(f"tools must be at most {MAX_TOOLS}, got {len(given)}", "tools")
    return given or []


def tool_choice(given: Any) -> tuple[str | None, tuple[str, ...]]:
    """``auto``, ``none`` or None, with notes. A word, or an object whose type is a word. Raises ApiError 400."""
    if given is None:
        return None, ()
    kind = given.get("type") if isinstance(given, dict) else given
    if isinstance(kind, str) and kind in CHOICES:
        return kind, ()
    if isinstance(kind, str) and (isinstance(given, dict) or kind in DEMANDS):
        return "auto", (FREE_CHOICE,)
    raise bad_request(
        f"tool_choice must be 'auto', 'none', 'required' or the name of a tool, got {shown(given)}", "tool_choice"
    )


def one_call_only(given: Any, key: str, *, value: bool) -> bool:
    """Whether a switch, if it is there, has the value that forbids parallel calls. Raises ApiError 400."""
    if given not in (None, True, False):
        raise bad_request(f"{key} must be true or false, got {shown(given)}", key)
    return given is value


def calls_of(asked: ParsedRequest, answer: CallAnswered) -> Sequence[Message]:
    """The tool calls of an answer that are handed out."""
    calls: Sequence[Message] = answer.message.get("tool_calls") or ()
    return calls[:1] if asked.one_call_only else calls
