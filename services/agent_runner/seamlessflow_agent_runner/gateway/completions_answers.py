"""OpenAI's legacy completions: the bodies and chunks an answer is sent as. Pure."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from seamlessflow.contracts import AnswerTokens, CallAnswered

from .chat_answers import DONE, usage
from .completions import parse_completions
from .dialect import Asked, Frame, event
from .errors import ApiError


class Completions:
    """The dialect; see ``dialect.Dialect``."""

    path = "/v1/completions"

    def parse(self, raw: bytes) -> Asked:
        return parse_completions(raw)

    def whole(self, frame: Frame, answer: CallAnswered) -> dict[str, Any]:
        text = answer.message.get("content") or ""
        return {**_body(frame, text, answer.finish_reason, _logprobs(answer)), "usage": usage(answer)}

    def stream(self, frame: Frame) -> CompletionStream:
        return CompletionStream(frame)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return error.body()


class CompletionStream:
    """See ``dialect.Stream``. Nothing in raw text is reasoning, so none ever comes."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def opening(self) -> bytes:
        return self.idle()

    def idle(self) -> bytes:
        return event(_body(self._frame, ""))

    def more(self, reasoning: str, content: str) -> bytes:
        return event(_body(self._frame, content))

    def ending(self, answer: CallAnswered) -> bytes:
        last = event(_body(self._frame, "", answer.finish_reason, _logprobs(answer)))
        if self._frame.asked.extra["include_usage"]:
            last += event({**_body(self._frame, ""), "choices": [], "usage": usage(answer)})
        return last + DONE

    def failing(self, error: ApiError) -> bytes:
        return event(error.body())


def _body(frame: Frame, text: str, finish: str | None = None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Chunks and whole answers have one form."""
    return {
        "id": f"cmpl-{frame.call}",
        "object": "text_completion",
        "created": frame.created,
        "model": frame.asked.model,
        "choices": [{"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}],
    }


def _logprobs(answer: CallAnswered) -> dict[str, Any] | None:
    return None if answer.tokens is None else legacy_logprobs(answer.tokens)


def legacy_logprobs(tokens: AnswerTokens) -> dict[str, Any]:
    """Four lists, an entry for each sampled token; offsets are characters. Alternatives are not recorded: ``top_logprobs``
    holds the sampled token alone. A text that ended the answer is among the tokens, though not in the answer's text."""
    texts, logprobs = list(tokens.texts), [float(logprob) for logprob in tokens.logprobs]
    return {
        "tokens": texts,
        "token_logprobs": logprobs,
        "top_logprobs": [{text: logprob} for text, logprob in zip(texts, logprobs, strict=True)],
        "text_offset": list(accumulate(map(len, texts), initial=0))[: len(texts)],
    }
