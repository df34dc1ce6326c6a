"""Requests of OpenAI's responses API, parsed into the chat completions form. Pure.

Accepted and without effect: temperature, top_p, top_logprobs, metadata, reasoning, text.verbosity, prompt_cache_key,
service_tier, user, max_tool_calls, stream_options, truncation = disabled, values of ``include`` that only built-in tools have,
and unknown fields. Tools of OpenAI's servers are left out of the offer (``offered_tools``), a tool_choice that demands a call
is taken as ``auto`` (``request_fields``). Refused with 400: fields that an agent would miss if they were ignored.

A client sends the whole input with each request, or points at earlier turns by ``previous_response_id`` or item references
(see ``previous_responses``; not after ``store`` = false).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from seamlessflow_agent_runner.gateway.api_errors import bad_request, unsupported
from seamlessflow_agent_runner.gateway.previous_responses import reference

from .base import ParsedRequest
from .openai_responses_tools import flat_name, namespaced, offered_tools
from .request_fields import (
    CONSTRAINED,
    Message,
    json_object,
    kind_of,
    model_and_stream,
    one_call_only,
    shown,
    tool_choice,
    whole_number,
)

# Item ids and encrypted contents carry the call they come from; clients return both byte for byte.

_CARRIER = re.compile(r"(?:resp|rs|msg|fc|call)_(c[0-9A-Za-z]+)(?:_[0-9]+)?")
REASONING = "rs_"
"""How ids of reasoning items begin."""
_SEAL = "sf1"


def response_id(call: str) -> str:
    """Id of the whole response."""
    return f"resp_{call}"


def item_id(kind: str, call: str, index: int = 0) -> str:
    """Id of an output item; ``kind``: OpenAI's prefix rs, msg or fc. ``index`` tells a turn's function calls apart."""
    return f"{kind}_{call}_{index}"


def call_in(carrier: Any) -> str | None:
    """The call that an id carries; None for an id that is not ours."""
    found = _CARRIER.fullmatch(carrier) if isinstance(carrier, str) else None
    return None if found is None else found.group(1)


def sealed(call: str, reasoning: str) -> str:
    """Reasoning as ``encrypted_content``. It is no secret: it only has to come back unchanged."""
    return f"{_SEAL}.{call}.{base64.urlsafe_b64encode(reasoning.encode()).decode()}"


def unsealed(content: Any) -> tuple[str, str] | None:
    """The call and its reasoning; None for another server's content."""
    seal, call, text = content.split(".") if isinstance(content, str) and content.count(".") == 2 else ("", "", "")
    if seal != _SEAL or call_in(item_id("rs", call)) is None:
        return None
    try:
        return call, base64.b64decode(text, altchars=b"-_", validate=True).decode()
    except ValueError:
        return None


# Input items to messages in the chat completions form.
#
# A turn of the model is several items there (reasoning, a message, function calls) and one assistant's message here. Items are
# of one turn when their ids carry the same call, even where a client put the output of one function call before the next.
# Without ids they are of one turn when they are neighbours and the turn has room for them.

ROLES = ("system", "developer", "user", "assistant")
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def messages_in(given: Any, *, goes_on: bool = False) -> list[Message]:
    """The messages of ``input``, which may be empty where it ``goes_on`` from an answer. Raises ApiError 400."""
    if goes_on and given in (None, []):
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise bad_request("input must be text, or a list with at least one item", "input")
    reader = _InputReader()
    for position, item in enumerate(given):
        reader.take(item, f"input[{position}]")
    if not (messages := reader.messages()):
        raise bad_request("input must have an item besides reasoning", "input")
    return messages


@dataclass(slots=True)
class _Turn:
    """An assistant's message that grows by its items."""

    call: str | None = None
    """The call it comes from, where one of its ids names it."""
    reasoning: list[str] = field(default_factory=list)
    content: str | None = None
    tool_calls: list[Message] = field(default_factory=list)
    is_referred: bool = False
    """Some of its items were left out and pointed at instead."""
    has_content: bool = False
    """It is known to be more than reasoning: its message or a call is here, or pointed at."""

    def message(self) -> Message | None:
        """None: there is only reasoning, and it is another model's or only pointed at."""
        if self.call is not None and self.is_referred:
            return reference(self.call) if self.has_content else None
        if not self.has_content and (self.call is None or not self.reasoning):
            return None
        message: Message = {"role": "assistant", "content": self.content or (None if self.tool_calls else "")}
        if self.reasoning:
            message["reasoning_content"] = "\n".join(self.reasoning)
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        if self.call is not None and self.has_content and all(call_in(each["id"]) != self.call for each in self.tool_calls):
            message["turn"] = self.call
        return message


class _InputReader:
    """Builds the messages from input items."""

    def __init__(self) -> None:
        self._parts: list[Message | _Turn] = []
        self._newest: _Turn | None = None
        """The last turn, while nothing but outputs of its functions came after it."""

    def messages(self) -> list[Message]:
        made = [part.message() if isinstance(part, _Turn) else part for part in self._parts]
        return [message for message in made if message is not None]

    def take(self, item: Any, where: str) -> None:
        if not isinstance(item, dict):
            raise bad_request(f"{where} must be an object, got {kind_of(item)}", where)
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        if kind == "message":
            self._take_message(item, where)
        elif kind == "reasoning":
            self._take_reasoning(item)
        elif kind == "function_call":
            self._take_function_call(item, where)
        elif kind == "function_call_output":
            self._take_output(item, where)
        elif kind == "item_reference":
            self._take_reference(item, where)
        else:
            known = "message, reasoning, function_call, function_call_output and item_reference"
            raise unsupported(f"{where} has type {shown(kind)}: only {known} are supported", where)

    def _take_message(self, item: Message, where: str) -> None:
        role = item.get("role")
        if role not in ROLES:
            raise bad_request(f"{where}.role must be one of {', '.join(ROLES)}, got {shown(role)}", f"{where}.role")
        text = text_in(item.get("content"), f"{where}.content")
        if role == "assistant":
            turn = self._turn(call_in(item.get("id")), lambda turn: turn.content is None)
            turn.content, turn.has_content = text, True
        else:
            self._parts.append({"role": role, "content": text})
            self._newest = None

    def _take_reasoning(self, item: Message) -> None:
        opened = unsealed(item.get("encrypted_content"))
        call = call_in(item.get("id")) or (opened[0] if opened else None)
        text = opened[1] if opened else "\n".join(_texts(item.get("content")) or _texts(item.get("summary")))
        turn = self._turn(call, lambda turn: turn.content is None and not turn.tool_calls)
        turn.reasoning += [text] if text else []

    def _take_function_call(self, item: Message, where: str) -> None:
        for key in ("call_id", "name", "arguments"):
            if not isinstance(item.get(key), str):
                raise bad_request(f"{where}.{key} must be text, got {kind_of(item.get(key))}", f"{where}.{key}")
        call_id, call = item["call_id"], call_in(item["call_id"]) or call_in(item.get("id"))
        turn = self._turn(
            call,
            # Function calls of our turns all name their call: without a name it belongs to another turn.
            lambda turn: (turn.call is None or call is not None) and all(each["id"] != call_id for each in turn.tool_calls),
        )
        function = {"name": flat_name(item.get("namespace"), item["name"]), "arguments": item["arguments"]}
        turn.tool_calls.append({"id": call_id, "type": "function", "function": function})
        turn.has_content = True

    def _take_output(self, item: Message, where: str) -> None:
        call_id = item.get("call_id")
        if not isinstance(call_id, str):
            raise bad_request(f"{where}.call_id must be the call_id of the function call it answers", f"{where}.call_id")
        text = text_in(item.get("output"), f"{where}.output")
        self._parts.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _take_reference(self, item: Message, where: str) -> None:
        carrier, call = item.get("id"), call_in(item.get("id"))
        if call is None:
            raise bad_request(f"{where}.id must be the id of an item that this session was answered with", f"{where}.id")
        turn = self._turn(call, lambda turn: turn.call == call)
        turn.is_referred = True
        turn.has_content = turn.has_content or not str(carrier).startswith(REASONING)

    def _turn(self, call: str | None, has_room: Callable[[_Turn], bool]) -> _Turn:
        """The turn that an item is part of: the newest one if it can be, or else a new one."""
        newest = self._newest
        if newest is not None and has_room(newest):
            is_same = call is not None and newest.call == call
            may_be = self._parts[-1] is newest and not newest.is_referred and (call is None or newest.call is None)
            if is_same or may_be:
                newest.call = newest.call or call
                return newest
        self._newest = turn = _Turn(call)
        self._parts.append(turn)
        return turn


def text_in(content: Any, where: str) -> str:
    """Content that is text or a list of text parts. Raises ApiError 400."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{where} must be text or a list of text parts, got {kind_of(content)}", where)
    texts: list[str] = []
    for number, part in enumerate(content):
        place, kind = f"{where}[{number}]", part.get("type") if isinstance(part, dict) else None
        key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if key is None:
            raise unsupported(
                f"{place} has type {shown(kind)}: only text parts are supported, no images, audio or files", place
            )
        if not isinstance(part.get(key), str):
            raise bad_request(f"{place}.{key} must be text", place)
        texts.append(part[key])
    return "".join(texts)


def _texts(parts: Any) -> list[str]:
    """Texts of a reasoning item's content or summary; what has none is passed over."""
    given = parts if isinstance(parts, list) else []
    return [part["text"] for part in given if isinstance(part, dict) and isinstance(part.get("text"), str) and part["text"]]


ECHOED = (
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "previous_response_id",
    "prompt_cache_key", "reasoning",
    "safety_identifier", "store", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user",
)  # fmt: skip
"""Fields of a request that its response shows again."""
SEALED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
_ELSEWHERE = {
    "conversation": "conversations are not kept: send the whole input",
    "prompt": "prompts are not kept: send their text as instructions and input",
    "background": "leave it out and wait for the answer: however long it takes, the connection is kept alive",
    "context_management": "leave it out and shorten the input yourself, on the error context_length_exceeded",
}


def parse_responses(raw: bytes) -> ParsedRequest:
    """The request in a body. Raises ApiError 400 that names the change to make."""
    body = json_object(raw)
    _refuse_unsupported(body)
    model, stream = model_and_stream(body)
    instructions = _instructions(body.get("instructions"))
    tools, left_out = offered_tools(body.get("tools"))
    choice, free = tool_choice(body.get("tool_choice"))
    previous = _previous(body.get("previous_response_id"))
    return ParsedRequest(
        model=model,
        messages=(*instructions, *messages_in(body.get("input"), goes_on=previous is not None)),
        tools=tools,
        tool_choice=choice,
        max_tokens=whole_number(body, "max_output_tokens"),
        stream=stream,
        logprobs=LOGPROBS in _include(body.get("include")),
        goes_on_from=previous,
        num_instructions=len(instructions),
        is_remembered=body.get("store") is not False,
        one_call_only=one_call_only(body.get("parallel_tool_calls"), "parallel_tool_calls", value=False),
        notes=(*left_out, *free),
        extra={
            "namespaces": namespaced(body.get("tools")),
            "echo": {key: body[key] for key in ECHOED if body.get(key) is not None},
            "seals_reasoning": SEALED in _include(body.get("include")),
        },
    )


def _refuse_unsupported(body: dict[str, Any]) -> None:
    for key, instead in _ELSEWHERE.items():
        if body.get(key):
            raise unsupported(f"{key} is not supported: {instead}", key)
    if body.get("truncation") not in (None, "disabled"):
        raise unsupported("truncation must be left out or 'disabled': shorten the input yourself", "truncation")
    text = body.get("text")
    form = text.get("format") if isinstance(text, dict) else text
    if form is not None and (not isinstance(form, dict) or form.get("type") != "text"):
        raise unsupported(f"text.format must be left out or {{'type': 'text'}}: {CONSTRAINED}", "text.format")


def _instructions(given: Any) -> list[Message]:
    if given is not None and not isinstance(given, str):
        raise bad_request(f"instructions must be text, got {kind_of(given)}", "instructions")
    return [{"role": "system", "content": given}] if given else []


def _previous(given: Any) -> str | None:
    call = call_in(given)
    if given is not None and call is None:
        what = "previous_response_id must be the id of a response of this session: else send the whole input"
        raise bad_request(what, "previous_response_id", code="previous_response_not_found")
    return call


def _include(given: Any) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise bad_request(f"include must be a list, got {kind_of(given)}", "include")
    return given
