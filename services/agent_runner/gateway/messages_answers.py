"""Anthropic messages: the bodies and events an answer is sent as. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from seamlessflow.contracts import CallAnswered

from .dialect import Asked, Frame, event, json_object, pieces
from .errors import ApiError
from .messages import parse_messages
from .messages_blocks import RAW_ARGUMENTS, SIGNATURE

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
}
_MOST_AND_GOT = re.compile(r"maximum context length is (\d+) tokens.* (\d+) tokens", re.DOTALL)
"""The numbers in the manager's words (``answers.too_long``)."""


class Messages:
    """The dialect; see ``dialect.Dialect``."""

    path = "/v1/messages"

    def parse(self, raw: bytes) -> Asked:
        return parse_messages(raw)

    def whole(self, frame: Frame, answer: CallAnswered) -> dict[str, Any]:
        return {
            **_envelope(frame),
            "content": list(_blocks(frame, answer.message)),
            "stop_reason": _stop_reason(answer),
            "usage": _usage(answer),
        }

    def opening(self, frame: Frame) -> bytes:
        return _event({"type": "message_start", "message": {**_envelope(frame), "usage": _usage(None)}})

    def idle(self, frame: Frame) -> bytes:
        return _event({"type": "ping"})

    def rest(self, frame: Frame, answer: CallAnswered) -> Iterator[bytes]:
        for index, block in enumerate(_blocks(frame, answer.message)):
            begun, deltas = _unfolded(block)
            yield _event({"type": "content_block_start", "index": index, "content_block": begun})
            for delta in deltas:
                yield _event({"type": "content_block_delta", "index": index, "delta": delta})
            yield _event({"type": "content_block_stop", "index": index})
        delta = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
        yield _event({"type": "message_delta", "delta": delta, "usage": _usage(answer)})
        yield _event({"type": "message_stop"})

    def error_body(self, error: ApiError) -> dict[str, Any]:
        kind = "api_error" if error.status >= 500 else _ERROR_TYPES.get(error.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": _words(error)}}

    def error_event(self, frame: Frame, error: ApiError) -> bytes:
        return _event(self.error_body(error))


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


def _blocks(frame: Frame, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Thoughts, text, tools; a text even if it is empty where nothing was called, as clients read ``content[0].text``."""
    thoughts, text, calls = message.get("reasoning_content"), message.get("content") or "", message.get("tool_calls") or ()
    if thoughts is not None:
        yield {"type": "thinking", "thinking": thoughts, "signature": SIGNATURE + frame.call}
    if text or not calls:
        yield {"type": "text", "text": text}
    for call in calls:
        function = call["function"]
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": input_of(function["arguments"])}


def _unfolded(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and the deltas that complete it."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    if block["type"] == "thinking":
        thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*thoughts, signed]
    written = json.dumps(block["input"], ensure_ascii=False)
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(written)]


def _envelope(frame: Frame) -> dict[str, Any]:
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


def _stop_reason(answer: CallAnswered) -> str:
    return _STOP_REASONS.get(answer.finish_reason, "end_turn")


def _usage(answer: CallAnswered | None) -> dict[str, int]:
    """Token counts; zeros while they are unknown, since clients add them up."""
    counts = None if answer is None else answer.usage
    if counts is None:
        return {"input_tokens": 0, "output_tokens": 0}
    return {"input_tokens": counts.prompt_tokens, "output_tokens": counts.completion_tokens}


def _words(error: ApiError) -> str:
    """Over-long prompts in the words that make Anthropic's agents compact."""
    if error.code != "context_length_exceeded":
        return error.message
    numbers = _MOST_AND_GOT.search(error.message)
    if numbers is None:
        return f"prompt is too long: {error.message}"
    return f"prompt is too long: {numbers[2]} tokens > {numbers[1]} maximum"


def _event(content: dict[str, Any]) -> bytes:
    """Its clients go by the event's name."""
    return event(content, content["type"])
