"""OpenAI responses: what a request body means, in the chat completions form, and which are refused. Pure.

Accepted and without effect: temperature, top_p, top_logprobs, metadata, reasoning, text.verbosity, prompt_cache_key,
service_tier, user, max_tool_calls, stream_options, truncation = disabled, values of ``include`` that only built-in tools have,
and fields we do not know. Tools that we cannot run are left out of the offer (``responses_tools``), a tool_choice that demands
a call is a wish (``offers``). Refused with 400: what an agent would miss if it were ignored.

The whole input is sent with each request, or what was said before is left out: ``previous_response_id``, item references
(see ``memory``; not after ``store`` = false).
"""

from __future__ import annotations

from typing import Any

from .bodies import json_object, kind_of, model_and_stream, whole_number
from .dialect import Asked
from .errors import bad_request, unsupported
from .offers import CONSTRAINED, Message, one_call_only, tool_choice
from .responses_ids import call_in
from .responses_input import messages_in
from .responses_tools import namespaced, offered_tools

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


def parse_responses(raw: bytes) -> Asked:
    """The request in a body. Raises ApiError 400 that says what to change."""
    body = json_object(raw)
    _refuse_unsupported(body)
    model, stream = model_and_stream(body)
    instructions = _instructions(body.get("instructions"))
    tools, left_out = offered_tools(body.get("tools"))
    choice, free = tool_choice(body.get("tool_choice"))
    previous = _previous(body.get("previous_response_id"))
    return Asked(
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
