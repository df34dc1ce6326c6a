"""OpenAI chat completions: the bodies and chunks an answer is sent as. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seamlessflow.contracts import CallAnswered

from .chat import parse_chat
from .dialect import Asked, Frame, event, pieces
from .errors import ApiError

DONE = b"data: [DONE]\n\n"


class ChatCompletions:
    """The dialect; see ``dialect.Dialect``."""

    path = "/v1/chat/completions"

    def parse(self, raw: bytes) -> Asked:
        return parse_chat(raw)

    def whole(self, frame: Frame, answer: CallAnswered) -> dict[str, Any]:
        message = {"role": "assistant", "content": None, "refusal": None, **answer.message}
        return {
            "id": f"chatcmpl-{frame.call}",
            "object": "chat.completion",
            "created": frame.created,
            "model": frame.asked.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}],
            "usage": usage(answer),
        }

    def opening(self, frame: Frame) -> bytes:
        return event(_chunk(frame, {"role": "assistant", "content": ""}))

    def idle(self, frame: Frame) -> bytes:
        return event(_chunk(frame, {}))

    def rest(self, frame: Frame, answer: CallAnswered) -> Iterator[bytes]:
        for delta in _deltas(answer):
            yield event(_chunk(frame, delta))
        yield event(_chunk(frame, {}, finish=answer.finish_reason))
        if frame.asked.extra["include_usage"]:
            yield event({**_chunk(frame, {}), "choices": [], "usage": usage(answer)})
        yield DONE

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return error.body()

    def error_event(self, frame: Frame, error: ApiError) -> bytes:
        return event(error.body())


def usage(answer: CallAnswered) -> dict[str, int] | None:
    """Token counts, or None where the manager gave none."""
    if answer.usage is None:
        return None
    prompt, sampled = answer.usage.prompt_tokens, answer.usage.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _deltas(answer: CallAnswered) -> Iterator[dict[str, Any]]:
    for piece in pieces(answer.message.get("content") or ""):
        yield {"content": piece}
    for number, call in enumerate(answer.message.get("tool_calls") or ()):
        function = call["function"]
        named = {"index": number, "id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": ""}}
        yield {"tool_calls": [named]}
        for piece in pieces(function["arguments"]):
            yield {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}


def _chunk(frame: Frame, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{frame.call}",
        "object": "chat.completion.chunk",
        "created": frame.created,
        "model": frame.asked.model,
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
