"""Tools of OpenAI's responses API: their offer in the chat completions form, and their names back. Pure.

A namespace's functions are offered one by one, as ``<namespace>__<function>``; the answer has both names apart, as its client
(Codex, for sub-agents and MCP servers) routes by them. A namespace's own description is not offered.
Tools that OpenAI's servers would run, and those that are no functions, are left out of the offer: agents send them by default
(Codex a web search) and work without. The response shows them again, and they are logged once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from seamlessflow_agent_runner.gateway.api_errors import bad_request, unsupported

from .request_fields import (
    HOSTED,
    Message,
    kind_of,
    listed_tools,
    shown,
)

_LEFT_OUT = re.compile(
    r"(web_search|web_search_preview|file_search|computer|computer_use|computer_use_preview|code_interpreter|image_generation|mcp"
    r"|programmatic_tool_calling|local_shell|shell|tool_search|apply_patch|custom)(_\d{4}_\d{2}_\d{2})?"
)
_BETWEEN = "__"


def offered_tools(given: Any) -> tuple[tuple[Message, ...] | None, tuple[str, ...]]:
    """The offer, None where it is empty, and notes. The same offer is the same in both dialects. Raises ApiError 400."""
    tools = listed_tools(given)
    offered = [each for number, tool in enumerate(tools) for each in _offered(tool, f"tools[{number}]")]
    notes = (HOSTED,) if any(_is_left_out(tool) for tool in _all_of(tools)) else ()
    return tuple(offered) or None, notes


def flat_name(namespace: Any, name: str) -> str:
    """The offered name of a namespace's function; ``name`` itself outside of one."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace.removesuffix(_BETWEEN)}{_BETWEEN}{name}"


def namespaced(given: Any) -> dict[str, tuple[str, str]]:
    """Flat name to namespace and name, of the tools of a request that ``offered_tools`` took."""
    tools = listed_tools(given)
    plain = {tool["name"] for tool in tools if tool["type"] == "function"}
    apart = [(space["name"], tool["name"]) for space in tools if space["type"] == "namespace" for tool in _functions(space)]
    return {flat_name(*names): names for names in apart if flat_name(*names) not in plain}


def names_of(called: str, namespaces: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """The fields of a function call that name it."""
    if called not in namespaces:
        return {"name": called}
    namespace, name = namespaces[called]
    return {"name": name, "namespace": namespace}


def _functions(space: Message) -> Iterator[Message]:
    return (tool for tool in space.get("tools") or () if tool["type"] == "function")


def _all_of(tools: list[Any]) -> Iterator[Message]:
    for tool in tools:
        yield tool
        yield from (tool.get("tools") or ()) if tool["type"] == "namespace" else ()


def _is_left_out(tool: Message) -> bool:
    return _LEFT_OUT.fullmatch(tool["type"]) is not None


def _offered(tool: Any, where: str, namespace: str | None = None) -> Iterator[Message]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "function":
        yield _function(tool, where, namespace)
    elif kind == "namespace" and namespace is None:
        _check_name(tool, where)
        members = tool.get("tools")
        if not isinstance(members, list | None):
            raise bad_request(f"{where}.tools must be a list, got {kind_of(members)}", f"{where}.tools")
        for number, member in enumerate(members or ()):
            yield from _offered(member, f"{where}.tools[{number}]", tool["name"])
    elif not isinstance(kind, str) or not _LEFT_OUT.fullmatch(kind):
        what = "only tools of type function and namespace can be offered; leave it out"
        raise unsupported(f"{where} has type {shown(kind)}: {what}", where)


def _function(tool: Message, where: str, namespace: str | None) -> Message:
    _check_name(tool, where)
    for key, kind, what in (("parameters", dict, "a JSON schema"), ("description", str, "text")):
        if tool.get(key) is not None and not isinstance(tool[key], kind):
            raise bad_request(f"{where}.{key} must be {what}, got {kind_of(tool[key])}", f"{where}.{key}")
    offered = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": {**offered, "name": flat_name(namespace, tool["name"])}}


def _check_name(tool: Message, where: str) -> None:
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise bad_request(f"{where}.name must be the name of the {tool['type']}", f"{where}.name")
