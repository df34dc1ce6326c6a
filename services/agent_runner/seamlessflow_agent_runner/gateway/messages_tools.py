"""Anthropic messages: the offer of tools in the chat completions form. Pure.

Some tools of Anthropic's own come without a schema, as its models know them by heart; their types end in a date.

bash, text editor, memory   the agent runs them and relies on them: offered by the name it gave, their parameters in our words
computer                    the agent runs it, and answers with pictures: refused, as no model here could see them
all others                  Anthropic's servers would run them, such as a web search: left out of the offer, said in a note
"""

from __future__ import annotations

import re
from typing import Any

from .bodies import kind_of, shown
from .errors import bad_request, unsupported
from .offers import HOSTED, listed_tools

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
