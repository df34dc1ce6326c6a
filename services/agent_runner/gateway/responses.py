"""OpenAI responses: what a request body means, in the chat completions form, and which are refused. Pure.

Accepted and without effect: temperature, top_p, top_logprobs, metadata, reasoning, text.verbosity, prompt_cache_key,
service_tier, user, max_tool_calls, stream_options, truncation = disabled, values of ``include`` that only built-in tools or
logprobs have, and fields we do not know. Refused with 400: what an agent would miss if it were ignored.

The whole input is sent with each request, or what was said before is left out: ``previous_response_id``, item references
(see ``memory``; not after ``store`` = false).
"""

from __future__ import annotations

from typing import Any

from .chat import PATIENCE, TOOL_CHOICES
from .dialect import Asked, json_object, kind_of, model_and_stream, whole_number
from .errors import bad_request, unsupported
from .responses_ids import call_in
from .responses_input import Message, messages_in

ECHOED = (
    "instructions", "max_output_tokens", "max_tool_calls", "metadata", "previous_response_id", "prompt_cache_key", "reasoning",
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


def parse_responses(raw: bytes) -> Asked:
    """The request in a body. Raises ApiError 400 that says what to change."""
    body = json_object(raw)
    _refuse_unsupported(body)
    model, stream = model_and_stream(body)
    instructions = _instructions(body.get("instructions"))
    return Asked(
        model=model,
        messages=(*instructions, *messages_in(body.get("input"))),
        tools=_tools(body.get("tools")),
        tool_choice=_tool_choice(body.get("tool_choice")),
        max_tokens=whole_number(body, "max_output_tokens"),
        stream=stream,
        logprobs=LOGPROBS in _include(body.get("include")),
        goes_on_from=_previous(body.get("previous_response_id")),
        num_instructions=len(instructions),
        is_remembered=body.get("store") is not False,
        extra={
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
        raise unsupported(f"text.format must be left out or {{'type': 'text'}}: {PATIENCE}", "text.format")
    if body.get("parallel_tool_calls") is False:
        raise unsupported(f"parallel_tool_calls = false must be left out: {PATIENCE}", "parallel_tool_calls")


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


def _tools(given: Any) -> tuple[Message, ...] | None:
    """In the chat completions form, so that an offer is the same offer in both dialects."""
    if given is None or given == []:
        return None
    if not isinstance(given, list):
        raise bad_request(f"tools must be a list, got {kind_of(given)}", "tools")
    return tuple(_tool(tool, f"tools[{number}]") for number, tool in enumerate(given))


def _tool(tool: Any, where: str) -> Message:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise unsupported(f"{where} has type {kind!r}: only function tools, which you run, are supported; leave it out", where)
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise bad_request(f"{where}.name must be the function's name", f"{where}.name")
    if not isinstance(tool.get("parameters"), dict | None):
        raise bad_request(f"{where}.parameters must be a JSON schema, got {kind_of(tool['parameters'])}", f"{where}.parameters")
    if not isinstance(tool.get("description"), str | None):
        raise bad_request(f"{where}.description must be text, got {kind_of(tool['description'])}", f"{where}.description")
    offered = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": offered}


def _tool_choice(given: Any) -> str | None:
    if given is None or given in TOOL_CHOICES:
        return given  # type: ignore[no-any-return]
    raise unsupported(f"tool_choice must be 'auto' or 'none', got {given!r}: {PATIENCE}", "tool_choice")


def _include(given: Any) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise bad_request(f"include must be a list, got {kind_of(given)}", "include")
    return given
