"""Anthropic messages: the body of an answer and its blocks. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seamlessflow.contracts import CallAnswered

from .bodies import json_object
from .dialect import Frame
from .errors import ApiError
from .messages_blocks import RAW_ARGUMENTS, SIGNATURE
from .offers import calls_of

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def whole_message(frame: Frame, answer: CallAnswered) -> dict[str, Any]:
    """A finished message."""
    blocks = list(blocks_of(frame, answer))
    return {**envelope(frame), "content": blocks, **stop_of(answer), "usage": usage(answer)}


def input_of(arguments: str) -> dict[str, Any]:
    """Tool arguments as the object that ``input`` must be; its way back is the same arguments.

    What is no JSON object, or could not come back in a request, is given whole under RAW_ARGUMENTS: the agent's tool refuses
    it, and the model reads why. So is an object that looks like that by itself.
    """
    raw = {RAW_ARGUMENTS: arguments}
    try:
        given = json_object(arguments.encode())
    except ApiError:
        return raw
    return raw if given.keys() == raw.keys() else given


def blocks_of(frame: Frame, answer: CallAnswered) -> Iterator[dict[str, Any]]:
    """Thoughts, text, tools; a text even if it is empty where nothing was called, as clients read ``content[0].text``."""
    thoughts, text = answer.message.get("reasoning_content"), answer.message.get("content") or ""
    calls = calls_of(frame.asked, answer)
    if thoughts and frame.asked.extra["shows_thinking"]:
        yield thinking_block(frame, thoughts)
    if text or not calls:
        yield {"type": "text", "text": text}
    for call in calls:
        function = call["function"]
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": input_of(function["arguments"])}


def thinking_block(frame: Frame, thoughts: str) -> dict[str, Any]:
    """Signed with the call that thought them."""
    return {"type": "thinking", "thinking": thoughts, "signature": SIGNATURE + frame.call}


def envelope(frame: Frame) -> dict[str, Any]:
    """A message of which nothing is known yet."""
    return {
        "id": f"msg_{frame.call}",
        "type": "message",
        "role": "assistant",
        "model": frame.asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def stop_of(answer: CallAnswered) -> dict[str, Any]:
    """Why it ended."""
    if answer.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop_sequence}
    return {"stop_reason": _STOP_REASONS.get(answer.finish_reason, "end_turn"), "stop_sequence": None}


def usage(answer: CallAnswered | None) -> dict[str, int]:
    """Token counts; zeros while they are unknown, since clients add them up."""
    counts = None if answer is None else answer.usage
    if counts is None:
        return {"input_tokens": 0, "output_tokens": 0}
    return {"input_tokens": counts.prompt_tokens, "output_tokens": counts.completion_tokens}
