"""OpenAI responses: the body of an answer and its items. Pure."""

from __future__ import annotations

from typing import Any

from seamlessflow.contracts import CallAnswered

from .dialect import Frame
from .logprobs import token_logprobs
from .offers import Message as Item
from .offers import calls_of
from .responses_ids import item_id, response_id, sealed
from .responses_tools import names_of

_UNSAID: dict[str, Any] = {
    "background": False, "error": None, "incomplete_details": None, "instructions": None, "max_output_tokens": None,
    "metadata": {}, "parallel_tool_calls": True, "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
    "service_tier": "default", "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
    "truncation": "disabled", "usage": None, "user": None,
}  # fmt: skip
"""What a response says where the request did not."""


def whole_response(frame: Frame, answer: CallAnswered) -> dict[str, Any]:
    """A finished response; incomplete where its budget ended it."""
    is_cut = answer.finish_reason == "length"
    return response_of(
        frame,
        "incomplete" if is_cut else "completed",
        incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
        output=output_items(frame, answer),
        usage=usage(answer),
    )


def output_items(frame: Frame, answer: CallAnswered) -> list[Item]:
    """The items of a turn, in the order a model speaks. Their ids carry the call."""
    call, message = frame.call, answer.message
    status = "incomplete" if answer.finish_reason == "length" else "completed"
    items: list[Item] = []
    reasoning, content = message.get("reasoning_content"), message.get("content")
    tool_calls = calls_of(frame.asked, answer)
    if reasoning:
        items.append(reasoning_item(frame, reasoning, "completed" if content or tool_calls else status))
    if content or not tool_calls:
        part = text_part(content or "")
        if answer.tokens is not None:
            part["logprobs"] = token_logprobs(answer.tokens)
        items.append({"type": "message", "id": item_id("msg", call), "role": "assistant", "status": status, "content": [part]})
    for index, each in enumerate(tool_calls):
        names = names_of(each["function"]["name"], frame.asked.extra["namespaces"])
        said = {"call_id": each["id"], **names, "arguments": each["function"]["arguments"]}
        items.append({"type": "function_call", "id": item_id("fc", call, index), "status": status, **said})
    return items


def reasoning_item(frame: Frame, reasoning: str, status: str) -> Item:
    """Reasoning is shown to nobody; a client that asks for it gets it sealed, to hand it back."""
    item = {"type": "reasoning", "id": item_id("rs", frame.call), "summary": [], "status": status}
    return {**item, "encrypted_content": sealed(frame.call, reasoning)} if frame.asked.extra["seals_reasoning"] else item


def usage(answer: CallAnswered) -> dict[str, Any] | None:
    """Token counts, or None where the manager gave none. What is not counted apart is 0."""
    if answer.usage is None:
        return None
    prompt, sampled = answer.usage.prompt_tokens, answer.usage.completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + sampled,
    }


def response_of(frame: Frame, status: str, **more: Any) -> dict[str, Any]:
    known = {"id": response_id(frame.call), "object": "response", "created_at": frame.created, "model": frame.asked.model}
    return {**known, "status": status, "output": [], **_UNSAID, **frame.asked.extra["echo"], **more}


def text_part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
