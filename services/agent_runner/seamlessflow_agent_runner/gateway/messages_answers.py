"""Anthropic messages as a dialect. Pure."""

from __future__ import annotations

from typing import Any

from seamlessflow.contracts import CallAnswered

from .dialect import Asked, Frame
from .errors import ApiError
from .messages import parse_messages
from .messages_bodies import whole_message
from .messages_stream import MessageStream

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
}


class Messages:
    """See ``dialect.Dialect``."""

    path = "/v1/messages"

    def parse(self, raw: bytes) -> Asked:
        return parse_messages(raw)

    def whole(self, frame: Frame, answer: CallAnswered) -> dict[str, Any]:
        return whole_message(frame, answer)

    def stream(self, frame: Frame) -> MessageStream:
        return MessageStream(frame, self.error_body)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        kind = "api_error" if error.status >= 500 else _ERROR_TYPES.get(error.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": _words(error)}}


def _words(error: ApiError) -> str:
    """Over-long prompts in the words that make Anthropic's agents compact."""
    if error.code != "context_length_exceeded":
        return error.message
    if error.most_tokens is None or error.got_tokens is None:
        return f"prompt is too long: {error.message}"
    return f"prompt is too long: {error.got_tokens} tokens > {error.most_tokens} maximum"
