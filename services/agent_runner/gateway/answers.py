"""OpenAI chat completions: the bodies and chunks an answer is sent as. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from seamlessflow.contracts import CallAnswered

NUM_PIECES = 4
"""A finished text is sent in at most this many chunks."""
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Frame:
    """What is the same in every chunk of one answer."""

    call: str
    model: str
    created: int
    """Unix seconds."""


def completion(frame: Frame, answer: CallAnswered) -> dict[str, Any]:
    """The body of a whole answer."""
    message = {"role": "assistant", "content": None, "refusal": None, **answer.message}
    return {
        "id": f"chatcmpl-{frame.call}",
        "object": "chat.completion",
        "created": frame.created,
        "model": frame.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}],
        "usage": usage(answer),
    }


def usage(answer: CallAnswered) -> dict[str, int] | None:
    """Token counts, or None where the manager gave none."""
    if answer.usage is None:
        return None
    prompt, sampled = answer.usage.prompt_tokens, answer.usage.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def event(content: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"


def opening(frame: Frame) -> dict[str, Any]:
    """The first chunk: who speaks."""
    return _chunk(frame, {"role": "assistant", "content": ""})


def idle(frame: Frame) -> dict[str, Any]:
    """A chunk that adds nothing: a data event resets idle timers that a comment line does not."""
    return _chunk(frame, {})


def deltas(frame: Frame, answer: CallAnswered, *, sent_characters: int = 0) -> Iterator[dict[str, Any]]:
    """The rest of an answer of whose text the first ``sent_characters`` have gone out already."""
    for piece in pieces((answer.message.get("content") or "")[sent_characters:]):
        yield _chunk(frame, {"content": piece})
    for number, call in enumerate(answer.message.get("tool_calls") or ()):
        function = call["function"]
        named = {"index": number, "id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": ""}}
        yield _chunk(frame, {"tool_calls": [named]})
        for piece in pieces(function["arguments"]):
            yield _chunk(frame, {"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
    yield _chunk(frame, {}, finish=answer.finish_reason)


def last_usage(frame: Frame, answer: CallAnswered) -> dict[str, Any]:
    """The chunk after the last that carries the token counts, for ``stream_options.include_usage``."""
    return {**_chunk(frame, {}), "choices": [], "usage": usage(answer)}


def pieces(text: str) -> list[str]:
    """The text in at most NUM_PIECES parts of about equal length; joined they are the text."""
    if not text:
        return []
    length = -(-len(text) // NUM_PIECES)
    return [text[start : start + length] for start in range(0, len(text), length)]


def _chunk(frame: Frame, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{frame.call}",
        "object": "chat.completion.chunk",
        "created": frame.created,
        "model": frame.model,
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
