"""OpenAI responses: the events of a streamed answer. Pure.

created, in_progress ─▶ reasoning item ─▶ message item: part, text deltas ─▶ function calls ─▶ completed | incomplete
"""

from __future__ import annotations

from itertools import count
from typing import Any

from seamlessflow.contracts import CallAnswered

from .dialect import Frame, event
from .errors import ApiError
from .offers import Message as Item
from .responses_bodies import reasoning_item, response_of, text_part, whole_response
from .responses_ids import item_id


class ResponseStream:
    """See ``dialect.Stream``."""

    def __init__(self, frame: Frame) -> None:
        self._frame, self._numbers = frame, count()
        self._reasoning = ""
        self._added: list[str] = []
        """Ids of items; an item's place here is its index."""
        self._done: set[str] = set()

    def opening(self) -> bytes:
        response = response_of(self._frame, "in_progress")
        return self._event("response.created", response=response) + self._event("response.in_progress", response=response)

    def idle(self) -> bytes:
        # The offered tools can be long, and this goes out each second.
        return self._event(
            "response.in_progress", response=response_of(self._frame, "in_progress", tools=[], instructions=None)
        )

    def more(self, reasoning: str, content: str) -> bytes:
        self._reasoning += reasoning
        thought = self._add(reasoning_item(self._frame, "", "in_progress")) if reasoning else b""
        if not content:
            return thought or self.idle()  # reasoning has no deltas, and is a sign of life
        return thought + self._begin_text() + self._text_event("output_text.delta", delta=content, logprobs=[])

    def ending(self, answer: CallAnswered) -> bytes:
        response = whole_response(self._frame, answer)
        items = b"".join(self._complete(item) for item in response["output"])
        return items + self._event(f"response.{response['status']}", response=response)

    def failing(self, error: ApiError) -> bytes:
        """OpenAI's libraries raise what stands in ``error``; Codex looks into the failed response."""
        said = error.body()["error"]
        failed = response_of(self._frame, "failed", error={"code": error.code, "message": error.message})
        return self._event("response.failed", response=failed, error=said)

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
        said = {"name": item["name"], "arguments": item["arguments"]}
        delta = self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
        return added + delta + self._event("response.function_call_arguments.done", **place, **said) + self._finish(item)

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
