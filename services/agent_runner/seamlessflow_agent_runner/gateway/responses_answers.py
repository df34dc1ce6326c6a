"""OpenAI responses as a dialect. Pure."""

from __future__ import annotations

from typing import Any

from seamlessflow.contracts import CallAnswered

from .dialect import Asked, Frame
from .errors import ApiError
from .responses import parse_responses
from .responses_bodies import whole_response
from .responses_stream import ResponseStream


class Responses:
    """See ``dialect.Dialect``."""

    path = "/v1/responses"

    def parse(self, raw: bytes) -> Asked:
        return parse_responses(raw)

    def whole(self, frame: Frame, answer: CallAnswered) -> dict[str, Any]:
        return whole_response(frame, answer)

    def stream(self, frame: Frame) -> ResponseStream:
        return ResponseStream(frame)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return error.body()
