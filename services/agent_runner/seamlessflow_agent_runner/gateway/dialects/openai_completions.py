"""OpenAI's legacy completions API as a dialect. Pure.

The prompt is text without a chat template. Accepted and without effect: temperature, top_p, seed, penalties,
logit_bias, user, and unknown fields. Without max_tokens the run's budget holds, not the sixteen tokens of OpenAI's API.
Refused with 400: several prompts or answers, token ids as a prompt, echo and suffix.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from typing_extensions import override

from seamlessflow.contracts import AnswerTokens, CallAnswered
from seamlessflow_agent_runner.gateway.api_errors import ApiError, bad_request, unsupported

from .base import ApiDialect, Frame, ParsedRequest, Stream, event
from .openai_chat import DONE, include_usage, usage
from .request_fields import json_object, kind_of, model_and_stream, shown, stop_texts, whole_number

PROMPT_ROLE = "prompt"


def parse_completions(raw: bytes) -> ParsedRequest:
    """The request in a body. Raises ApiError 400 that names the change to make."""
    body = json_object(raw)
    _refuse_unsupported(body)
    model, stream = model_and_stream(body)
    return ParsedRequest(
        model=model,
        messages=({"role": PROMPT_ROLE, "content": _prompt(body.get("prompt"))},),
        max_tokens=whole_number(body, "max_tokens"),
        stop=stop_texts(body.get("stop"), "stop"),
        stream=stream,
        logprobs=_wants_logprobs(body.get("logprobs")),
        extra={"include_usage": include_usage(body.get("stream_options"), is_stream=stream)},
    )


def _refuse_unsupported(body: dict[str, Any]) -> None:
    for key in ("n", "best_of"):
        if body.get(key) not in (None, 1):
            raise unsupported(f"{key} must be 1: several answers per call are not supported yet; make several calls", key)
    if body.get("echo"):
        raise unsupported("echo must be left out: put the prompt before the answer yourself", "echo")
    if body.get("suffix"):
        raise unsupported("suffix must be left out: text is only sampled behind the prompt", "suffix")


def _prompt(given: Any) -> str:
    prompt = given[0] if isinstance(given, list) and len(given) == 1 else given
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list):
        what = "several prompts, or token ids, are not supported yet; make a call for each prompt, and send it as text"
        raise unsupported(f"prompt must be one text: {what}", "prompt")
    raise bad_request(f"prompt must be text, got {kind_of(prompt)}", "prompt")


def _wants_logprobs(given: Any) -> bool:
    """How many alternatives are wanted: none are recorded, so 0 and 5 give the same."""
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 0):
        raise bad_request(f"logprobs must be a whole number of at least 0, got {shown(given)}", "logprobs")
    return given is not None


class Completions(ApiDialect):
    """OpenAI's legacy completions, see ``base.ApiDialect``."""

    path = "/v1/completions"

    @override
    def parse(self, raw: bytes) -> ParsedRequest:
        return parse_completions(raw)

    @override
    def whole(self, frame: Frame, answer: CallAnswered) -> dict[str, Any]:
        text = answer.message.get("content") or ""
        return {**_body(frame, text, answer.finish_reason, _logprobs(answer)), "usage": usage(answer)}

    @override
    def stream(self, frame: Frame) -> CompletionStream:
        return CompletionStream(frame)

    @override
    def error_body(self, error: ApiError) -> dict[str, Any]:
        return error.body()


class CompletionStream(Stream):
    """A streamed completion, see ``base.Stream``. Raw text has no reasoning."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    @override
    def opening(self) -> bytes:
        return self.idle()

    @override
    def idle(self) -> bytes:
        return event(_body(self._frame, ""))

    @override
    def more(self, reasoning: str, content: str) -> bytes:
        return event(_body(self._frame, content))

    @override
    def ending(self, answer: CallAnswered) -> bytes:
        last = event(_body(self._frame, "", answer.finish_reason, _logprobs(answer)))
        if self._frame.asked.extra["include_usage"]:
            last += event({**_body(self._frame, ""), "choices": [], "usage": usage(answer)})
        return last + DONE

    @override
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
