"""Sampled text to an assistant's message: ``<tool_call>`` blocks of JSON, as Qwen, Hermes and our tiny model write them.

A block that is not what it should be comes back raw as content: the turn is kept, and the agent sees what was said.
Nothing at the beginning of reasoning or content depends on what comes after it, newlines around thoughts and white space
before calls apart, so that a text can be shown while it is sampled; see streaming.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from seamlessflow.tokenization.tokenizer import CALL, CALLED, THINK, THOUGHT

_BLOCK = re.compile(f"{CALL}(.*?){CALLED}", re.DOTALL)
_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """``arguments`` is the JSON text exactly as it was sampled."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a turn says. ``num_malformed``: blocks that were left in the content."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    num_malformed: int = 0
    stop_sequence: str | None = None
    """The stop text it was cut at."""


def parse_text(text: str, *, with_tools: bool, is_thinking: bool = False) -> Parsed:
    """``with_tools`` False: nobody offered tools, so whatever looks like a call is text.

    ``is_thinking``: the prompt has opened the thoughts already. Thoughts that are not closed are all there is.
    """
    reasoning, content = _split_reasoning(text, is_thinking=is_thinking)
    if not with_tools or CALL not in content:
        return Parsed(content, reasoning=reasoning)
    calls: list[ToolCall] = []
    malformed = 0

    def take(block: re.Match[str]) -> str:
        nonlocal malformed
        call = parse_call(block.group(1))
        if call is None:
            malformed += 1
            return block.group(0)
        calls.append(call)
        return ""

    rest = _BLOCK.sub(take, content)
    if rest.rfind(CALL) > rest.rfind(CALLED):
        malformed += 1  # opened and never closed
    return Parsed(rest.rstrip() if calls else content, tuple(calls), reasoning, malformed)


def _split_reasoning(text: str, *, is_thinking: bool) -> tuple[str | None, str]:
    if not is_thinking and not text.startswith(THINK):
        return None, text
    reasoning, _, content = text.removeprefix(THINK).partition(THOUGHT)
    return reasoning.strip("\n"), content.lstrip("\n")


def parse_call(block: str) -> ToolCall | None:
    """The call inside a block: an object with a ``name`` and ``arguments`` that are an object or text. Else None."""
    members = _verbatim_members(block.strip())
    if members is None or "name" not in members or "arguments" not in members:
        return None
    name, arguments = json.loads(members["name"]), json.loads(members["arguments"])
    if not isinstance(name, str) or not name or not isinstance(arguments, dict | str):
        return None
    call = ToolCall(name, arguments if isinstance(arguments, str) else members["arguments"])
    try:
        (call.name + call.arguments).encode()
    except UnicodeEncodeError:  # half a surrogate pair, escaped: it could not be handed on
        return None
    return call


def _verbatim_members(text: str) -> dict[str, str] | None:
    """The members of one JSON object, each value as the very text it was written in. None: not one object."""
    if text[:1] != "{":
        return None
    members: dict[str, str] = {}
    position = _skip(text, 1)
    try:
        if text[position] == "}":
            return members if position + 1 == len(text) else None
        while True:
            if text[position] != '"':
                return None
            key, position = _DECODER.raw_decode(text, position)
            position = _skip(text, position)
            if text[position] != ":":
                return None
            begin = _skip(text, position + 1)
            _, end = _DECODER.raw_decode(text, begin)
            members[key] = text[begin:end]
            position = _skip(text, end)
            if text[position] == "}":
                return members if position + 1 == len(text) else None
            if text[position] != ",":
                return None
            position = _skip(text, position + 1)
    except (ValueError, IndexError, RecursionError):
        return None


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position
