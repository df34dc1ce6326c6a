"""OpenAI responses: the bodies and events an answer is sent as. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seamlessflow.contracts import CallAnswered

from .dialect import Asked, Frame, event, pieces
from .errors import ApiError
from .responses import parse_responses
from .responses_ids import item_id, response_id, sealed

Item = dict[str, Any]

_UNSAID: dict[str, Any] = {
    "background": False, "error": None, "incomplete_details": None, "instructions": None, "max_output_tokens": None,
    "metadata": {}, "parallel_tool_calls": True, "previous_response_id": None, "reasoning": {"effort": None, "summary": None},
    "service_tier": "default", "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
    "truncation": "disabled", "usage": None, "user": None,
}  # fmt: skip
"""What a response says where the request did not."""
_EMPTY: dict[str, Item] = {"reasoning": {}, "message": {"content": []}, "function_call": {"arguments": ""}}
"""An item before anything of it was sent."""


class Responses:
    """The dialect; see ``dialect.Dialect``."""

    path = "/v1/responses"

    def parse(self, raw: bytes) -> Asked:
        return parse_responses(raw)

    def whole(self, frame: Frame, answer: CallAnswered) -> dict[str, Any]:
        """Ended by its budget: incomplete."""
        is_cut = answer.finish_reason == "length"
        return _response(
            frame,
            "incomplete" if is_cut else "completed",
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            output=output_items(frame, answer),
            usage=usage(answer),
        )

    def opening(self, frame: Frame) -> bytes:
        response = _response(frame, "in_progress")
        return b"".join(_event(frame, f"response.{name}", response=response) for name in ("created", "in_progress"))

    def idle(self, frame: Frame) -> bytes:
        # The offered tools can be long, and this goes out each second.
        return _event(frame, "response.in_progress", response=_response(frame, "in_progress", tools=[], instructions=None))

    def rest(self, frame: Frame, answer: CallAnswered) -> Iterator[bytes]:
        response = self.whole(frame, answer)
        for index, item in enumerate(response["output"]):
            yield from _item_events(frame, index, item)
        yield _event(frame, f"response.{response['status']}", response=response)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        return error.body()

    def error_event(self, frame: Frame, error: ApiError) -> bytes:
        """OpenAI's libraries raise what stands in ``error``; Codex looks into the failed response."""
        said = error.body()["error"]
        failed = _response(frame, "failed", error={"code": error.code, "message": error.message})
        return _event(frame, "response.failed", response=failed, error=said)


def output_items(frame: Frame, answer: CallAnswered) -> list[Item]:
    """The items of a turn, in the order a model speaks. Their ids carry the call."""
    call, message = frame.call, answer.message
    status = "incomplete" if answer.finish_reason == "length" else "completed"
    items: list[Item] = []
    reasoning, content, tool_calls = (message.get(key) for key in ("reasoning_content", "content", "tool_calls"))
    if reasoning:
        item: Item = {"type": "reasoning", "id": item_id("rs", call), "summary": [], "status": status}
        items.append({**item, "encrypted_content": sealed(call, reasoning)} if frame.asked.extra["seals_reasoning"] else item)
    if content or not tool_calls:
        part = _text_part(content or "")
        items.append({"type": "message", "id": item_id("msg", call), "role": "assistant", "status": status, "content": [part]})
    for index, each in enumerate(tool_calls or ()):
        said = {"call_id": each["id"], "name": each["function"]["name"], "arguments": each["function"]["arguments"]}
        items.append({"type": "function_call", "id": item_id("fc", call, index), "status": status, **said})
    return items


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


def _response(frame: Frame, status: str, **more: Any) -> dict[str, Any]:
    known = {"id": response_id(frame.call), "object": "response", "created_at": frame.created, "model": frame.asked.model}
    return {**known, "status": status, "output": [], **_UNSAID, **frame.asked.extra["echo"], **more}


def _text_part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _event(frame: Frame, kind: str, **content: Any) -> bytes:
    return event({"type": kind, "sequence_number": next(frame.numbers), **content}, name=kind)


def _item_events(frame: Frame, index: int, item: Item) -> Iterator[bytes]:
    begun = {**item, "status": "in_progress", **_EMPTY[item["type"]]}
    yield _event(frame, "response.output_item.added", output_index=index, item=begun)
    place = {"item_id": item["id"], "output_index": index}
    if item["type"] == "message":
        yield from _text_events(frame, {**place, "content_index": 0}, item["content"][0]["text"])
    elif item["type"] == "function_call":
        for piece in pieces(item["arguments"]):
            yield _event(frame, "response.function_call_arguments.delta", **place, delta=piece)
        said = {"name": item["name"], "arguments": item["arguments"]}
        yield _event(frame, "response.function_call_arguments.done", **place, **said)
    yield _event(frame, "response.output_item.done", output_index=index, item=item)


def _text_events(frame: Frame, place: dict[str, Any], text: str) -> Iterator[bytes]:
    yield _event(frame, "response.content_part.added", **place, part=_text_part(""))
    for piece in pieces(text):
        yield _event(frame, "response.output_text.delta", **place, delta=piece, logprobs=[])
    yield _event(frame, "response.output_text.done", **place, text=text, logprobs=[])
    yield _event(frame, "response.content_part.done", **place, part=_text_part(text))
