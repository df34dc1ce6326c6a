"""OpenAI's responses API as a dialect: bodies, items and events of answers. Pure."""

from __future__ import annotations

from itertools import count
from typing import Any

from typing_extensions import override

from seamlessflow.contracts import CallAnswered
from seamlessflow_agent_runner.gateway.api_errors import ApiError

from .base import ApiDialect, Frame, ParsedRequest, Stream, event
from .openai_chat import token_logprobs
from .openai_responses_request import item_id, parse_responses, response_id, sealed
from .openai_responses_tools import names_of
from .request_fields import Message as Item
from .request_fields import calls_of

_RESPONSE_DEFAULTS: dict[str, Any] = {
    "background": False, "error": None, "incomplete_details": None, "instructions": None, "max_output_tokens": None,
    "metadata": {}, "parallel_tool_calls": True, "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
    "service_tier": "default", "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
    "truncation": "disabled", "usage": None, "user": None,
}  # fmt: skip
"""Fields of a response that its request left out."""


def whole_response(frame: Frame, answer: CallAnswered) -> dict[str, Any]:
    """A finished response; incomplete where its budget ended it."""
    is_cut = answer.finish_reason == "length"
    return response_of(
        frame,
        "incomplete" if is_cut else "completed",
        incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
        output=output_items(frame, answer),
        usage=usage(answer),
    )


def output_items(frame: Frame, answer: CallAnswered) -> list[Item]:
    """The items of a turn, in the order a model speaks. Their ids carry the call."""
    call, message = frame.call, answer.message
    status = "incomplete" if answer.finish_reason == "length" else "completed"
    items: list[Item] = []
    reasoning, content = message.get("reasoning_content"), message.get("content")
    tool_calls = calls_of(frame.asked, answer)
    if reasoning:
        items.append(reasoning_item(frame, reasoning, "completed" if content or tool_calls else status))
    if content or not tool_calls:
        part = text_part(content or "")
        if answer.tokens is not None:
            part["logprobs"] = token_logprobs(answer.tokens)
        items.append({"type": "message", "id": item_id("msg", call), "role": "assistant", "status": status, "content": [part]})
    for index, each in enumerate(tool_calls):
        names = names_of(each["function"]["name"], frame.asked.extra["namespaces"])
        fields = {"call_id": each["id"], **names, "arguments": each["function"]["arguments"]}
        items.append({"type": "function_call", "id": item_id("fc", call, index), "status": status, **fields})
    return items


def reasoning_item(frame: Frame, reasoning: str, status: str) -> Item:
    """Reasoning is not shown; a client that asks for it gets it sealed, to return it."""
    item = {"type": "reasoning", "id": item_id("rs", frame.call), "summary": [], "status": status}
    return {**item, "encrypted_content": sealed(frame.call, reasoning)} if frame.asked.extra["seals_reasoning"] else item


def usage(answer: CallAnswered) -> dict[str, Any] | None:
    """Token counts, or None where the manager gave none. What is not counted apart is 0."""
    if answer.usage is None:
        return None
    prompt, sampled = answer.usage.prompt_tokens, answer.usage.completion_tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + sampled,
    }


def response_of(frame: Frame, status: str, **more: Any) -> dict[str, Any]:
    """A response object without output; ``more`` replaces its fields."""
    known = {"id": response_id(frame.call), "object": "response", "created_at": frame.created, "model": frame.asked.model}
    return {**known, "status": status, "output": [], **_RESPONSE_DEFAULTS, **frame.asked.extra["echo"], **more}


def text_part(text: str) -> Item:
    """The content part of a message item."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


# The events of a streamed answer:
# created, in_progress ─▶ reasoning item ─▶ message item: part, text deltas ─▶ function calls ─▶ completed | incomplete


class ResponseStream(Stream):
    """A streamed response, see ``base.Stream``."""

    def __init__(self, frame: Frame) -> None:
        self._frame, self._numbers = frame, count()
        self._reasoning = ""
        self._added: list[str] = []
        """Ids of items; an item's place here is its index."""
        self._done: set[str] = set()

    @override
    def opening(self) -> bytes:
        response = response_of(self._frame, "in_progress")
        return self._event("response.created", response=response) + self._event("response.in_progress", response=response)

    @override
    def idle(self) -> bytes:
        # The offered tools can be long, and this goes out each second.
        return self._event(
            "response.in_progress", response=response_of(self._frame, "in_progress", tools=[], instructions=None)
        )

    @override
    def more(self, reasoning: str, content: str) -> bytes:
        self._reasoning += reasoning
        thought = self._add(reasoning_item(self._frame, "", "in_progress")) if reasoning else b""
        if not content:
            return thought or self.idle()  # reasoning has no deltas, and is a sign of life
        return thought + self._begin_text() + self._text_event("output_text.delta", delta=content, logprobs=[])

    @override
    def ending(self, answer: CallAnswered) -> bytes:
        response = whole_response(self._frame, answer)
        items = b"".join(self._complete(item) for item in response["output"])
        return items + self._event(f"response.{response['status']}", response=response)

    @override
    def failing(self, error: ApiError) -> bytes:
        """OpenAI's libraries raise ``error``; Codex reads the failed response."""
        fields = error.body()["error"]
        failed = response_of(self._frame, "failed", error={"code": error.code, "message": error.message})
        return self._event("response.failed", response=failed, error=fields)

    def _begin_text(self) -> bytes:
        if self._text_id in self._added:
            return b""
        thought = self._finish(reasoning_item(self._frame, self._reasoning, "completed")) if self._added else b""
        item = {"type": "message", "id": self._text_id, "role": "assistant", "status": "in_progress", "content": []}
        return thought + self._add(item) + self._text_event("content_part.added", part=text_part(""))

    def _complete(self, item: Item) -> bytes:
        """All of a finished response's item that was not sent yet."""
        if item["type"] == "reasoning":
            return self._add({**item, "status": "in_progress"}) + self._finish(item)
        if item["type"] == "message":
            part = item["content"][0]
            text = self._begin_text() + self._text_event("output_text.done", text=part["text"], logprobs=part["logprobs"])
            return text + self._text_event("content_part.done", part=part) + self._finish(item)
        return self._function_call(item)

    def _function_call(self, item: Item) -> bytes:
        added = self._add({**item, "status": "in_progress", "arguments": ""})
        place = {"item_id": item["id"], "output_index": self._added.index(item["id"])}
        fields = {"name": item["name"], "arguments": item["arguments"]}
        delta = self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        return added + delta + self._event("response.function_call_arguments.done", **place, **fields) + self._finish(item)

    def _add(self, item: Item) -> bytes:
        """Begin an item, once."""
        if item["id"] in self._added:
            return b""
        self._added.append(item["id"])
        return self._event("response.output_item.added", output_index=len(self._added) - 1, item=item)

    def _finish(self, item: Item) -> bytes:
        """End an item, once."""
        if item["id"] in self._done:
            return b""
        self._done.add(item["id"])
        return self._event("response.output_item.done", output_index=self._added.index(item["id"]), item=item)

    @property
    def _text_id(self) -> str:
        return item_id("msg", self._frame.call)

    def _text_event(self, kind: str, **content: Any) -> bytes:
        place = {"item_id": self._text_id, "output_index": self._added.index(self._text_id), "content_index": 0}
        return self._event(f"response.{kind}", **place, **content)

    def _event(self, kind: str, **content: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._numbers), **content}, name=kind)


class Responses(ApiDialect):
    """OpenAI's responses, see ``base.ApiDialect``."""

    path = "/v1/responses"

    @override
    def parse(self, raw: bytes) -> ParsedRequest:
        return parse_responses(raw)

    @override
    def whole(self, frame: Frame, answer: CallAnswered) -> dict[str, Any]:
        return whole_response(frame, answer)

    @override
    def stream(self, frame: Frame) -> ResponseStream:
        return ResponseStream(frame)

    @override
    def error_body(self, error: ApiError) -> dict[str, Any]:
        return error.body()
