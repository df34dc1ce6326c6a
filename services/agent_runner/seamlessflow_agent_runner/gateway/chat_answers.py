"""OpenAI chat completions: the bodies and chunks an answer is sent as. Pure."""

from __future__ import annotations

from typing import Any

from seamlessflow.contracts import CallAnswered

from .chat import parse_chat
from .dialect import Asked, Frame, event
from .errors import ApiError
from .logprobs import token_logprobs
from .offers import calls_of

DONE = b"data: [DONE]\n\n"


class ChatCompletions:
    """The dialect; see ``dialect.Dialect``."""

    path = "/v1/chat/completions"

    def parse(self, raw: bytes) -> Asked:
        return parse_chat(raw)

    def whole(self, frame: Frame, answer: CallAnswered) -> dict[str, Any]:
        message = {"role": "assistant", "content": None, "refusal": None, **answer.message}
        if answer.message.get("tool_calls"):
            message["tool_calls"] = list(calls_of(frame.asked, answer))
        choice = {"index": 0, "message": message, "logprobs": _logprobs(answer), "finish_reason": answer.finish_reason}
        return {
            "id": f"chatcmpl-{frame.call}",
            "object": "chat.completion",
            "created": frame.created,
            "model": frame.asked.model,
            "choices": [choice],
            "usage": usage(answer),
        }

    def stream(self, frame: Frame) -> ChatStream:
        return ChatStream(frame)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return error.body()


class ChatStream:
    """See ``dialect.Stream``."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def opening(self) -> bytes:
        return event(self._chunk({"role": "assistant", "content": ""}))

    def idle(self) -> bytes:
        return event(self._chunk({}))

    def more(self, reasoning: str, content: str) -> bytes:
        thought = event(self._chunk({"reasoning_content": reasoning})) if reasoning else b""
        return thought + (event(self._chunk({"content": content})) if content else b"")

    def ending(self, answer: CallAnswered) -> bytes:
        calls = calls_of(self._frame.asked, answer)
        chunks = [self._chunk({"tool_calls": [_named(number, call)]}) for number, call in enumerate(calls)]
        last = self._chunk({}, answer.finish_reason)
        last["choices"][0]["logprobs"] = _logprobs(answer)
        chunks.append(last)
        if self._frame.asked.extra["include_usage"]:
            chunks.append({**self._chunk({}), "choices": [], "usage": usage(answer)})
        return b"".join(event(chunk) for chunk in chunks) + DONE

    def failing(self, error: ApiError) -> bytes:
        return event(error.body())

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self._frame.call}",
            "object": "chat.completion.chunk",
            "created": self._frame.created,
            "model": self._frame.asked.model,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        }


def usage(answer: CallAnswered) -> dict[str, int] | None:
    """Token counts, or None where the manager gave none."""
    if answer.usage is None:
        return None
    prompt, sampled = answer.usage.prompt_tokens, answer.usage.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _logprobs(answer: CallAnswered) -> dict[str, Any] | None:
    return None if answer.tokens is None else {"content": token_logprobs(answer.tokens), "refusal": None}


def _named(number: int, call: dict[str, Any]) -> dict[str, Any]:
    return {"index": number, "id": call["id"], "type": "function", "function": dict(call["function"])}
