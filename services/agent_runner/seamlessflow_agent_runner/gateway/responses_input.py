"""OpenAI responses: input items to messages in the chat completions form. Pure.

A turn of the model is several items there (reasoning, a message, function calls) and one assistant's message here. Items are
of one turn when their ids carry the same call, even where a client put the output of one function call before the next, or
else when they stand together and nothing speaks against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .bodies import kind_of, shown
from .errors import bad_request, unsupported
from .memory import reference
from .offers import Message
from .responses_ids import REASONING, call_in, unsealed
from .responses_tools import flat_name

ROLES = ("system", "developer", "user", "assistant")
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}


def messages_in(given: Any, *, goes_on: bool = False) -> list[Message]:
    """What ``input`` says. Raises ApiError 400 that names the place. ``goes_on``: behind an earlier answer it may be empty."""
    if goes_on and given in (None, []):
        return []
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise bad_request("input must be text, or a list with at least one item", "input")
    speech = _Speech()
    for position, item in enumerate(given):
        speech.take(item, f"input[{position}]")
    if not (messages := speech.messages()):
        raise bad_request("input must say something besides reasoning", "input")
    return messages


@dataclass(slots=True)
class _Turn:
    """An assistant's message that grows by its items."""

    call: str | None = None
    """The call it comes from, where any of its ids says so."""
    reasoning: list[str] = field(default_factory=list)
    content: str | None = None
    tool_calls: list[Message] = field(default_factory=list)
    is_referred: bool = False
    """Some of its items were left out and pointed at instead."""
    is_said: bool = False
    """It is known to be more than reasoning: its message or a call is here, or pointed at."""

    def message(self) -> Message | None:
        """None: nothing but reasoning that is somebody else's, or is only pointed at."""
        if self.call is not None and self.is_referred:
            return reference(self.call) if self.is_said else None
        if not self.is_said and (self.call is None or not self.reasoning):
            return None
        message: Message = {"role": "assistant", "content": self.content or (None if self.tool_calls else "")}
        if self.reasoning:
            message["reasoning_content"] = "\n".join(self.reasoning)
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        if self.call is not None and self.is_said and all(call_in(each["id"]) != self.call for each in self.tool_calls):
            message["turn"] = self.call
        return message


class _Speech:
    """Who said what so far."""

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
            turn.content, turn.is_said = text, True
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
            # Without a pointer of its own it is not of a turn that we know: ours all have one.
            lambda turn: (turn.call is None or call is not None) and all(each["id"] != call_id for each in turn.tool_calls),
        )
        function = {"name": flat_name(item.get("namespace"), item["name"]), "arguments": item["arguments"]}
        turn.tool_calls.append({"id": call_id, "type": "function", "function": function})
        turn.is_said = True

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
        turn.is_said = turn.is_said or not str(carrier).startswith(REASONING)

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
