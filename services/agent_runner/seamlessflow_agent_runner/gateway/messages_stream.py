"""Anthropic messages: the events of a streamed answer. Pure.

message_start ─▶ a block: start, deltas, stop ─▶ ... (thoughts, text, tools) ─▶ message_delta ─▶ message_stop
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from seamlessflow.contracts import CallAnswered

from .dialect import Frame, event
from .errors import ApiError
from .messages_bodies import blocks_of, envelope, stop_of, thinking_block, usage


class MessageStream:
    """See ``dialect.Stream``."""

    def __init__(self, frame: Frame, error_body: Callable[[ApiError], dict[str, Any]]) -> None:
        self._frame, self._error_body = frame, error_body
        self._index = -1
        """Of the newest block."""
        self._open: str | None = None
        """Type of the block that is not stopped yet."""

    def opening(self) -> bytes:
        return _event({"type": "message_start", "message": {**envelope(self._frame), "usage": usage(None)}})

    def idle(self) -> bytes:
        # Claude Code gives a stream up after five minutes of pings; text that adds nothing counts.
        if self._open not in ("thinking", "text"):
            return _event({"type": "ping"})
        return self._delta({"type": f"{self._open}_delta", self._open: ""})

    def more(self, reasoning: str, content: str) -> bytes:
        shown = reasoning if self._frame.asked.extra["shows_thinking"] else ""
        thought = self._deltas("thinking", "thinking", "thinking_delta", shown) if shown else b""
        said = self._deltas("text", "text", "text_delta", content) if content else b""
        return thought + said or self.idle()

    def ending(self, answer: CallAnswered) -> bytes:
        tools = [block for block in blocks_of(self._frame, answer) if block["type"] == "tool_use"]
        is_silent = not tools and self._open != "text"
        text = self._deltas("text", "text", "text_delta", "") if is_silent else b""
        said = text + self._stop() + b"".join(self._tool(block) for block in tools)
        ended = _event({"type": "message_delta", "delta": stop_of(answer), "usage": usage(answer)})
        return said + ended + _event({"type": "message_stop"})

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
    """Its clients go by the event's name."""
    return event(content, content["type"])
