"""OpenAI's chat completions API as a dialect: requests, answers, logprobs. Pure.

Accepted and without effect, because the run sets the sampling parameters and everything is recorded anyway: temperature,
top_p, seed, penalties, logit_bias, top_logprobs (see ``token_logprobs``), user, metadata, store, and unknown fields.
A tool_choice that demands a call is taken as ``auto`` (see ``request_fields``).
Refused with 400: fields that an agent would miss if they were ignored (see ``_refuse_unsupported``).
"""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from seamlessflow.contracts import AnswerTokens, CallAnswered
from seamlessflow_agent_runner.gateway.api_errors import ApiError, bad_request, unsupported

from .base import ApiDialect, Frame, ParsedRequest, Stream, event
from .request_fields import (
    CONSTRAINED,
    calls_of,
    json_object,
    kind_of,
    listed_tools,
    model_and_stream,
    one_call_only,
    shown,
    stop_texts,
    tool_choice,
    whole_number,
)

ROLES = ("system", "developer", "user", "assistant", "tool")


def parse_chat(raw: bytes) -> ParsedRequest:
    """The request in a body. Raises ApiError 400 that names the change to make."""
    body = json_object(raw)
    _refuse_unsupported(body)
    model, stream = model_and_stream(body)
    choice, notes = tool_choice(body.get("tool_choice"))
    return ParsedRequest(
        model=model,
        messages=checked_messages(body.get("messages")),
        tools=checked_tools(body.get("tools")),
        tool_choice=choice,
        max_tokens=_max_tokens(body),
        stop=stop_texts(body.get("stop"), "stop"),
        stream=stream,
        logprobs=body.get("logprobs") is True,
        one_call_only=one_call_only(body.get("parallel_tool_calls"), "parallel_tool_calls", value=False),
        notes=notes,
        extra={"include_usage": include_usage(body.get("stream_options"), is_stream=stream)},
    )


def _refuse_unsupported(body: dict[str, Any]) -> None:
    if body.get("n") not in (None, 1):
        raise unsupported("n must be 1: several choices per call are not supported yet; make several calls", "n")
    form = body.get("response_format")
    if form is not None and (not isinstance(form, dict) or form.get("type") != "text"):
        raise unsupported(f"response_format must be left out or {{'type': 'text'}}: {CONSTRAINED}", "response_format")
    for legacy, instead in (("functions", "tools"), ("function_call", "tool_choice")):
        if body.get(legacy) is not None:
            raise unsupported(f"{legacy} is not supported: use {instead}", legacy)
    if body.get("modalities") not in (None, ["text"]) or body.get("audio") is not None:
        raise unsupported("only text can be answered: leave modalities and audio out", "modalities")


def checked_messages(given: Any) -> tuple[dict[str, Any], ...]:
    """Messages in the chat completions form. Raises ApiError 400 that names the place."""
    if not isinstance(given, list) or not given:
        raise bad_request("messages must be a list with at least one message", "messages")
    for position, message in enumerate(given):
        _check_message(message, f"messages[{position}]")
    # ``turn`` is a key of our own, which other dialects set; here it is an unknown field like any other.
    return tuple({key: value for key, value in message.items() if key != "turn"} for message in given)


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise bad_request(f"{where} must be an object with role and content, got {kind_of(message)}", where)
    role = message.get("role")
    if role not in ROLES:
        raise bad_request(f"{where}.role must be one of {', '.join(ROLES)}, got {shown(role)}", f"{where}.role")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise bad_request(f"{where}.tool_call_id must be the id of the call it answers", f"{where}.tool_call_id")
    calls = message.get("tool_calls")
    if calls is not None:
        _check_tool_calls(calls, where, role)
    _check_content(message.get("content"), where, may_be_empty=role == "assistant")


def _check_content(content: Any, where: str, *, may_be_empty: bool) -> None:
    if isinstance(content, str) or (content is None and may_be_empty):
        return
    if not isinstance(content, list):
        raise bad_request(f"{where}.content must be text or a list of text parts, got {kind_of(content)}", f"{where}.content")
    for number, part in enumerate(content):
        place = f"{where}.content[{number}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "refusal"):
            raise unsupported(
                f"{place} has type {shown(kind)}: only text parts are supported, no images, audio or files", place
            )
        if not isinstance(part.get(kind), str):
            raise bad_request(f"{place}.{kind} must be text", place)


def _check_tool_calls(calls: Any, where: str, role: Any) -> None:
    if role != "assistant" or not isinstance(calls, list):
        raise bad_request(f"{where}.tool_calls must be a list in a message of role assistant", f"{where}.tool_calls")
    for number, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not all(isinstance(function.get(key), str) for key in ("name", "arguments")):
            place = f"{where}.tool_calls[{number}]"
            raise bad_request(f"{place} must have a function with name and arguments, both text", place)


def checked_tools(given: Any) -> tuple[dict[str, Any], ...] | None:
    """Tools in the chat completions form; None where there are none. Raises ApiError 400 that names the place."""
    tools = listed_tools(given)
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            place = f"tools[{number}]"
            raise bad_request(f"{place} must be {{'type': 'function', 'function': {{'name': ..., ...}}}}", place)
    return tuple(tools) or None


def _max_tokens(body: dict[str, Any]) -> int | None:
    wanted = [whole_number(body, key) for key in ("max_tokens", "max_completion_tokens")]
    return min((value for value in wanted if value is not None), default=None)


def include_usage(options: Any, *, is_stream: bool) -> bool:
    """Whether a stream ends with a chunk of token counts. Raises ApiError 400."""
    if options is None:
        return False
    if not is_stream or not isinstance(options, dict):
        raise bad_request("stream_options must be an object, and needs stream = true", "stream_options")
    return bool(options.get("include_usage"))


def token_logprobs(tokens: AnswerTokens) -> list[dict[str, Any]]:
    """OpenAI's entry of each sampled token. Alternatives are not recorded: ``top_logprobs`` holds the sampled token alone."""
    return [_one(text, logprob) for text, logprob in zip(tokens.texts, tokens.logprobs, strict=True)]


def _one(text: str, logprob: float) -> dict[str, Any]:
    token = {"token": text, "logprob": logprob, "bytes": list(text.encode())}
    return {**token, "top_logprobs": [token]}


DONE = b"data: [DONE]\n\n"


class ChatCompletions(ApiDialect):
    """OpenAI's chat completions, see ``base.ApiDialect``."""

    path = "/v1/chat/completions"

    @override
    def parse(self, raw: bytes) -> ParsedRequest:
        return parse_chat(raw)

    @override
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

    @override
    def stream(self, frame: Frame) -> ChatStream:
        return ChatStream(frame)

    @override
    def error_body(self, error: ApiError) -> dict[str, Any]:
        return error.body()


class ChatStream(Stream):
    """A streamed chat completion, see ``base.Stream``."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    @override
    def opening(self) -> bytes:
        return event(self._chunk({"role": "assistant", "content": ""}))

    @override
    def idle(self) -> bytes:
        return event(self._chunk({}))

    @override
    def more(self, reasoning: str, content: str) -> bytes:
        thought = event(self._chunk({"reasoning_content": reasoning})) if reasoning else b""
        return thought + (event(self._chunk({"content": content})) if content else b"")

    @override
    def ending(self, answer: CallAnswered) -> bytes:
        calls = calls_of(self._frame.asked, answer)
        chunks = [self._chunk({"tool_calls": [_named(number, call)]}) for number, call in enumerate(calls)]
        last = self._chunk({}, answer.finish_reason)
        last["choices"][0]["logprobs"] = _logprobs(answer)
        chunks.append(last)
        if self._frame.asked.extra["include_usage"]:
            chunks.append({**self._chunk({}), "choices": [], "usage": usage(answer)})
        return b"".join(event(chunk) for chunk in chunks) + DONE

    @override
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
