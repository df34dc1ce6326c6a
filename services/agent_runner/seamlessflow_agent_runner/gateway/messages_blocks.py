"""Anthropic messages: from blocks to messages in the chat completions form. Pure.

The same conversation comes out the same however a client cuts it: neighbours of one role are one message, as Anthropic's
API combines them. A user's texts are joined with a blank line, an assistant's with nothing in between: they were one text
when we gave them. Claude Code's first system line may differ with each request and tells the model nothing: it is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from seamlessflow.text.noise import without_noisy_lines

from .bodies import kind_of, shown
from .errors import ApiError, bad_request, unsupported

BLANK_LINE = "\n\n"
SIGNATURE = "seamlessflow-"
"""A signature is this and the call that thought it: clients bring it back byte for byte."""
RAW_ARGUMENTS = "_raw_arguments"
"""The only key of an input that stands for arguments which are no JSON object, as ``input`` must be one."""
_KINDS = {"user": "text and tool_result", "assistant": "text, thinking and tool_use", "system": "text"}


def system_messages(given: Any) -> Iterator[dict[str, Any]]:
    """One message or none. Raises ApiError 400 that names the place."""
    texts = [] if given is None else _texts(given, "system")
    kept = [clean for text in texts if (clean := without_noisy_lines(text))]
    if kept:
        yield {"role": "system", "content": BLANK_LINE.join(kept)}


def conversation(given: Any) -> Iterator[dict[str, Any]]:
    """The messages after the system's. Raises ApiError 400 that names the place."""
    if not isinstance(given, list) or not given:
        raise bad_request("messages must be a list with at least one message", "messages")
    parts = (part for position, message in enumerate(given) for part in _parts(message, f"messages[{position}]"))
    role = ""
    for role, neighbours in groupby(parts, key=lambda part: str(part["role"])):
        if role == "tool":
            yield from neighbours
        else:
            yield _joined(role, list(neighbours))
    if role == "assistant":
        raise unsupported("the last message must be the user's: going on with an assistant's text is not supported", "messages")


def _parts(message: Any, where: str) -> Iterator[dict[str, Any]]:
    """A message for each block; ``_joined`` makes one of those that belong together."""
    if not isinstance(message, dict):
        raise bad_request(f"{where} must be an object with role and content, got {kind_of(message)}", where)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _KINDS:
        raise bad_request(f"{where}.role must be one of {', '.join(_KINDS)}, got {shown(role)}", f"{where}.role")
    if content == []:
        yield {"role": role, "content": ""}
    for place, block in _blocks(content, f"{where}.content"):
        yield {"role": role, "content": "", **_part(role, block, place)}


def _part(role: str, block: dict[str, Any], place: str) -> dict[str, Any]:
    """What a block gives to the message of its role, or a message of another role."""
    match role, block.get("type"):
        case _, "text":
            return {"content": _field(block, place, "text")}
        case "user", "tool_result":
            return _tool_result(block, place)
        case "assistant", "tool_use":
            return {"tool_calls": [_tool_call(block, place)]}
        case "assistant", "thinking":
            return {"reasoning_content": _field(block, place, "thinking"), **_turn(block)}
        case "assistant", "redacted_thinking":
            return {}
    raise _unknown(block, place, _KINDS[role])


def _joined(role: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    between = "" if role == "assistant" else BLANK_LINE
    message: dict[str, Any] = {"role": role, "content": between.join(part["content"] for part in parts if part["content"])}
    thoughts = [part["reasoning_content"] for part in parts if "reasoning_content" in part]
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    calls = [call for part in parts for call in part.get("tool_calls", ())]
    if calls:
        message["tool_calls"] = calls
    turns = [part["turn"] for part in parts if "turn" in part]
    # Thoughts alone point at nothing: what they led to was taken out.
    is_said = any("reasoning_content" not in part for part in parts)
    return {**message, "turn": turns[0]} if turns and is_said else message


def _tool_result(block: dict[str, Any], place: str) -> dict[str, Any]:
    content = block.get("content")
    texts = [] if content is None else _texts(content, f"{place}.content")
    failed = "Error: " if block.get("is_error") is True else ""
    text = failed + BLANK_LINE.join(filter(None, texts))
    return {"role": "tool", "tool_call_id": _field(block, place, "tool_use_id"), "content": text}


def _tool_call(block: dict[str, Any], place: str) -> dict[str, Any]:
    given = block.get("input")
    if not isinstance(given, dict):
        raise bad_request(f"{place}.input must be an object, got {kind_of(given)}", f"{place}.input")
    function = {"name": _field(block, place, "name"), "arguments": _arguments(given)}
    return {"id": _field(block, place, "id"), "type": "function", "function": function}


def _arguments(given: dict[str, Any]) -> str:
    """The text a tool's input was, or one that means the same."""
    raw = given.get(RAW_ARGUMENTS)
    return raw if len(given) == 1 and isinstance(raw, str) else json.dumps(given, ensure_ascii=False)


def _turn(block: dict[str, Any]) -> dict[str, str]:
    """The call that a signature of ours points at; another model's points nowhere."""
    signature = block.get("signature")
    is_ours = isinstance(signature, str) and signature.startswith(SIGNATURE)
    return {"turn": str(signature).removeprefix(SIGNATURE)} if is_ours else {}


def _texts(content: Any, where: str) -> list[str]:
    """Of a text, or of blocks that may only be text."""
    return [_part("system", block, place)["content"] for place, block in _blocks(content, where)]


def _blocks(content: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each block with its place; a text alone is one block."""
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(given, list):
        raise bad_request(f"{where} must be text or a list of blocks, got {kind_of(given)}", where)
    for number, block in enumerate(given):
        place = f"{where}[{number}]"
        if not isinstance(block, dict):
            raise bad_request(f"{place} must be an object with a type, got {kind_of(block)}", place)
        yield place, block


def _field(block: dict[str, Any], place: str, key: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise bad_request(f"{place}.{key} must be text, got {kind_of(value)}", f"{place}.{key}")
    return value


def _unknown(block: dict[str, Any], place: str, supported: str) -> ApiError:
    what = f"only {supported} blocks are supported here, no images, documents, search results or server tools"
    return unsupported(f"{place} has type {shown(block.get('type'))}: {what}", place)
