"""Anthropic's messages API as a dialect: bodies, blocks and events of answers. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import override

from seamlessflow.contracts import CallAnswered
from seamlessflow_agent_runner.gateway.api_errors import ApiError

from .anthropic_request import RAW_ARGUMENTS, SIGNATURE, parse_messages
from .base import ApiDialect, Frame, ParsedRequest, Stream, event
from .request_fields import calls_of, json_object

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def whole_message(frame: Frame, answer: CallAnswered) -> dict[str, Any]:
    """A finished message."""
    blocks = list(blocks_of(frame, answer))
    return {**envelope(frame), "content": blocks, **stop_of(answer), "usage": usage(answer)}


def input_of(arguments: str) -> dict[str, Any]:
    """Tool arguments as the object that ``input`` must be; its way back is the same arguments.

    Text that is no JSON object, or could not come back in a request, is the value of RAW_ARGUMENTS: the agent's tool refuses
    it, and the model reads the reason. So is an object whose only key is RAW_ARGUMENTS itself.
    """
    raw = {RAW_ARGUMENTS: arguments}
    try:
        given = json_object(arguments.encode())
    except ApiError:
        return raw
    return raw if given.keys() == raw.keys() else given


def blocks_of(frame: Frame, answer: CallAnswered) -> Iterator[dict[str, Any]]:
    """Thoughts, text, tools. Without tools there is a text, even an empty one, as clients read ``content[0].text``."""
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
    """The reason of the end."""
    if answer.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop_sequence}
    return {"stop_reason": _STOP_REASONS.get(answer.finish_reason, "end_turn"), "stop_sequence": None}


def usage(answer: CallAnswered | None) -> dict[str, int]:
    """Token counts; zeros while they are unknown, since clients add them up."""
    counts = None if answer is None else answer.usage
    if counts is None:
        return {"input_tokens": 0, "output_tokens": 0}
    return {"input_tokens": counts.prompt_tokens, "output_tokens": counts.completion_tokens}


# The events of a streamed answer:
# message_start ─▶ a block: start, deltas, stop ─▶ ... (thoughts, text, tools) ─▶ message_delta ─▶ message_stop


class MessageStream(Stream):
    """A streamed message, see ``base.Stream``."""

    def __init__(self, frame: Frame, error_body: Callable[[ApiError], dict[str, Any]]) -> None:
        self._frame, self._error_body = frame, error_body
        self._index = -1
        """Of the newest block."""
        self._open: str | None = None
        """Type of the block that is not stopped yet."""

    @override
    def opening(self) -> bytes:
        return _event({"type": "message_start", "message": {**envelope(self._frame), "usage": usage(None)}})

    @override
    def idle(self) -> bytes:
        # Claude Code gives a stream up after five minutes of pings; text that adds nothing counts.
        if self._open not in ("thinking", "text"):
            return _event({"type": "ping"})
        return self._delta({"type": f"{self._open}_delta", self._open: ""})

    @override
    def more(self, reasoning: str, content: str) -> bytes:
        shown = reasoning if self._frame.asked.extra["shows_thinking"] else ""
        thought = self._deltas("thinking", "thinking", "thinking_delta", shown) if shown else b""
        events = self._deltas("text", "text", "text_delta", content) if content else b""
        return thought + events or self.idle()

    @override
    def ending(self, answer: CallAnswered) -> bytes:
        tools = [block for block in blocks_of(self._frame, answer) if block["type"] == "tool_use"]
        is_silent = not tools and self._open != "text"
        text = self._deltas("text", "text", "text_delta", "") if is_silent else b""
        events = text + self._stop() + b"".join(self._tool(block) for block in tools)
        ended = _event({"type": "message_delta", "delta": stop_of(answer), "usage": usage(answer)})
        return events + ended + _event({"type": "message_stop"})

    @override
    def failing(self, error: ApiError) -> bytes:
        return _event(self._error_body(error))

    def _deltas(self, kind: str, field: str, delta: str, text: str) -> bytes:
        """Text of a block, which is begun first if another or none is open."""
        begun = b""
        if self._open != kind:
            empty = {**thinking_block(self._frame, ""), "signature": ""} if kind == "thinking" else {"type": kind, field: ""}
            begun = self._stop() + self._start(kind, empty)
        return begun + (self._delta({"type": delta, field: text}) if text else b"")

    def _tool(self, block: dict[str, Any]) -> bytes:
        started = self._start("tool_use", {**block, "input": {}})
        written = json.dumps(block["input"], ensure_ascii=False)
        return started + self._delta({"type": "input_json_delta", "partial_json": written}) + self._stop()

    def _start(self, kind: str, block: dict[str, Any]) -> bytes:
        self._index, self._open = self._index + 1, kind
        return _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        signature = thinking_block(self._frame, "")["signature"]
        signed = self._delta({"type": "signature_delta", "signature": signature}) if self._open == "thinking" else b""
        self._open = None
        return signed + _event({"type": "content_block_stop", "index": self._index})


def _event(content: dict[str, Any]) -> bytes:
    """A named event: clients read the name."""
    return event(content, content["type"])


_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
}


class AnthropicMessages(ApiDialect):
    """Anthropic's messages, see ``base.ApiDialect``."""

    path = "/v1/messages"

    @override
    def parse(self, raw: bytes) -> ParsedRequest:
        return parse_messages(raw)

    @override
    def whole(self, frame: Frame, answer: CallAnswered) -> dict[str, Any]:
        return whole_message(frame, answer)

    @override
    def stream(self, frame: Frame) -> MessageStream:
        return MessageStream(frame, self.error_body)

    @override
    def error_body(self, error: ApiError) -> dict[str, Any]:
        kind = "api_error" if error.status >= 500 else _ERROR_TYPES.get(error.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": _error_text(error)}}


def _error_text(error: ApiError) -> str:
    """The message; for an over-long prompt the one that makes Anthropic's agents compact."""
    if error.code != "context_length_exceeded":
        return error.message
    if error.most_tokens is None or error.got_tokens is None:
        return f"prompt is too long: {error.message}"
    return f"prompt is too long: {error.got_tokens} tokens > {error.most_tokens} maximum"
