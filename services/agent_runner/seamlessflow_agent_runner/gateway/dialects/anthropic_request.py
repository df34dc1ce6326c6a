"""Requests of Anthropic's messages API, parsed into the chat completions form. Pure.

Accepted and without effect, because the run sets the sampling parameters: temperature, top_p, top_k, metadata, thinking,
context_management, service_tier, betas, cache_control, and unknown fields. A tool_choice that demands a call is taken as
``auto`` (``request_fields``). Refused with 400: fields that an agent would miss if they were ignored (see ``_REFUSED``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from seamlessflow.tokenization.volatile_lines import without_noisy_lines
from seamlessflow_agent_runner.gateway.api_errors import ApiError, bad_request, unsupported

from .base import ParsedRequest
from .request_fields import (
    CONSTRAINED,
    HOSTED,
    json_object,
    kind_of,
    listed_tools,
    model_and_stream,
    one_call_only,
    shown,
    stop_texts,
    tool_choice,
    whole_number,
)

# Blocks to messages in the chat completions form.
#
# A conversation gives the same messages however a client cuts it: neighbours of one role are one message, as Anthropic's API
# combines them. A user's texts are joined with a blank line, an assistant's without: they were one text in our answer.
# Claude Code's first system line may differ with each request and has no meaning for the model: it is dropped.

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
    """Fields that a block adds to the message of its role, or a message of another role."""
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
    # Thoughts alone point at no call: the rest of their turn was taken out.
    has_content = any("reasoning_content" not in part for part in parts)
    return {**message, "turn": turns[0]} if turns and has_content else message


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


# Tools to the chat completions form.
#
# Some tools of Anthropic's own come without a schema, as its models are trained on them; their types end in a date.
#
# bash, text editor, memory   the agent runs them and relies on them: offered by its name for them, with a schema of ours
# computer                    the agent runs it, and answers with pictures: refused, as no model here could see them
# all others                  Anthropic's servers would run them, such as a web search: left out of the offer, with a note


OWN_TOOLS = "only tools that the agent itself describes and runs are supported"
_ANTHROPICS_OWN = re.compile(r"([a-z0-9_]+)_(\d{8})|mcp_toolset|tool_search_tool_(?:bm25|regex)")
_UNDO_UNTIL = "20250124"
"""The text editor's last version that can undo."""


def offered_tools(given: Any) -> tuple[tuple[dict[str, Any], ...] | None, tuple[str, ...]]:
    """The offer, None where it is empty, and notes. Raises ApiError 400 that names the place."""
    offered = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(listed_tools(given))]
    kept = tuple(tool for tool in offered if tool is not None)
    return kept or None, () if len(kept) == len(offered) else (HOSTED,)


def _tool(given: Any, place: str) -> dict[str, Any] | None:
    """None: it is left out."""
    if not isinstance(given, dict):
        raise bad_request(f"{place} must be an object with name and input_schema, got {kind_of(given)}", place)
    kind = given.get("type")
    if isinstance(kind, str) and (own := _ANTHROPICS_OWN.fullmatch(kind)) is not None:
        return _known(given, own.group(1), own.group(2), place)
    if kind not in (None, "custom"):
        raise unsupported(f"{place} has type {shown(kind)}: {OWN_TOOLS}; give it a name and an input_schema", place)
    description, schema = given.get("description"), given.get("input_schema")
    if not isinstance(given.get("name"), str) or not isinstance(schema, dict):
        raise bad_request(f"{place} must have a name (text) and an input_schema (an object)", place)
    if not isinstance(description, str | None):
        raise bad_request(f"{place}.description must be text, got {kind_of(description)}", f"{place}.description")
    return _function(given, place, description, schema)


def _known(given: dict[str, Any], family: str | None, version: str | None, place: str) -> dict[str, Any] | None:
    if family == "computer":
        raise unsupported(f"{place}: the computer tool answers with pictures, and only text can be read here", place)
    if family == "bash":
        return _function(
            given, place, "Runs a command in a bash session that lasts.", _object({}, command=_COMMAND, restart=_RESTART)
        )
    if family == "text_editor":
        commands = ["view", "create", "str_replace", "insert"] + (["undo_edit"] if str(version) <= _UNDO_UNTIL else [])
        insert = "str_replace: what comes instead; insert: what to insert"
        schema = _object({"command": commands, "path": str}, **_EDITS, new_str=_text(insert))
        return _function(given, place, "Views, creates and edits text files.", schema)
    if family == "memory":
        commands = ["view", "create", "str_replace", "insert", "delete", "rename"]
        moves = {"old_path": _text("rename: from where"), "new_path": _text("rename: to where")}
        new = {"new_str": _text("str_replace: what comes instead"), "insert_text": _text("insert: what to insert")}
        schema = _object({"command": commands}, path=_text("All but rename: a path below /memories"), **_EDITS, **new, **moves)
        return _function(given, place, "Keeps notes from one conversation to the next, as files below /memories.", schema)
    return None


def _function(given: dict[str, Any], place: str, description: str | None, schema: dict[str, Any]) -> dict[str, Any]:
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise bad_request(f"{place}.name must be the name of the tool", f"{place}.name")
    described = {} if description is None else {"description": description}
    return {"type": "function", "function": {"name": name, **described, "parameters": schema}}


def _text(what: str) -> dict[str, Any]:
    return {"type": "string", "description": what}


def _object(required: dict[str, Any], **more: dict[str, Any]) -> dict[str, Any]:
    """A schema. ``required``: the words that are allowed, or any text."""
    demanded = {key: {"type": "string", **({} if value is str else {"enum": value})} for key, value in required.items()}
    return {"type": "object", "properties": {**demanded, **more}, **({"required": list(required)} if required else {})}


_COMMAND = _text("The command to run")
_RESTART = {"type": "boolean", "description": "Instead of a command: begin a new session"}
_EDITS: dict[str, dict[str, Any]] = {
    "file_text": _text("create: the file's content"),
    "view_range": {
        "type": "array",
        "items": {"type": "integer"},
        "description": "view: first and last line, from 1; -1: the end",
    },
    "old_str": _text("str_replace: the text to replace, which stands there exactly once"),
    "insert_line": {"type": "integer", "description": "insert: behind which line; 0: at the beginning"},
}


_REFUSED = {
    "output_format": CONSTRAINED,
    "mcp_servers": OWN_TOOLS,
    "container": OWN_TOOLS,
    "thread": "conversations are not kept; send all messages",
    "compaction": "ask for a summary in words of your own",
}
BYTES_PER_TOKEN = 4
"""About what English text and code come to with the vocabularies in use."""


def parse_messages(raw: bytes) -> ParsedRequest:
    """The request in a body. Raises ApiError 400 that names the change to make."""
    body = json_object(raw)
    _refuse_unsupported(body)
    model, stream = model_and_stream(body)
    tools, left_out = offered_tools(body.get("tools"))
    choice, free = tool_choice(body.get("tool_choice"))
    return ParsedRequest(
        model=model,
        messages=(*system_messages(body.get("system")), *conversation(body.get("messages"))),
        tools=tools,
        tool_choice=choice,
        max_tokens=whole_number(body, "max_tokens"),
        stop=stop_texts(body.get("stop_sequences"), "stop_sequences"),
        stream=stream,
        one_call_only=_one_call_only(body.get("tool_choice")),
        notes=(*left_out, *free),
        extra={"shows_thinking": _shows_thinking(body.get("thinking"))},
    )


def _shows_thinking(given: Any) -> bool:
    """Clients that did not ask for thoughts do not expect blocks of them."""
    return isinstance(given, dict) and given.get("type") not in (None, "disabled")


def estimated_tokens(asked: ParsedRequest) -> int:
    """An estimate, as the gateway has no tokenizer: a quarter of the UTF-8 bytes of all text, rounded up.

    The count that is exact is the ``input_tokens`` of an answer.
    """
    return -(-sum(len(text.encode()) for text in _all_text(asked)) // BYTES_PER_TOKEN)


def _all_text(asked: ParsedRequest) -> Iterator[str]:
    for message in asked.messages:
        yield message["content"]
        yield message.get("reasoning_content", "")
        for call in message.get("tool_calls", ()):
            yield call["function"]["name"]
            yield call["function"]["arguments"]
    for tool in asked.tools or ():
        yield json.dumps(tool["function"], ensure_ascii=False)


def _refuse_unsupported(body: dict[str, Any]) -> None:
    for field, why in _REFUSED.items():
        if body.get(field) not in (None, [], {}):
            raise unsupported(f"{field} must be left out: {why}", field)
    config = body.get("output_config")
    if isinstance(config, dict) and config.get("format") is not None:
        raise unsupported(f"output_config.format must be left out: {CONSTRAINED}", "output_config.format")


def _one_call_only(choice: Any) -> bool:
    key = "disable_parallel_tool_use"
    return isinstance(choice, dict) and one_call_only(choice.get(key), f"tool_choice.{key}", value=True)
