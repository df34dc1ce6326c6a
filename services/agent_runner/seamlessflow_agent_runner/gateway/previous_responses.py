"""The earlier turns of a session, for clients that leave them out and point at an earlier answer instead.

They live as long as the session, and its agent does not outlive that. A message of several calls is kept once, and so is the
common beginning of calls: each turn of a conversation costs memory only for its new messages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from seamlessflow.contracts import CallAnswered

from .api_errors import bad_request
from .dialects.base import ParsedRequest
from .dialects.request_fields import Message


@dataclass(frozen=True, slots=True, eq=False)
class _MessageChain:
    """A message and all before it; calls with the same beginning share one."""

    message: Message
    before: _MessageChain | None


class PreviousResponses:
    """Messages and answers of one session."""

    def __init__(self) -> None:
        self._messages: dict[str, Message] = {}
        """By digest."""
        self._after: dict[tuple[_MessageChain | None, str], _MessageChain] = {}
        self._asked: dict[str, _MessageChain | None] = {}
        """By call: the last message of its request, instructions left out."""
        self._answers: dict[str, Message] = {}
        """By call, of the remembered ones."""

    def note(self, call: str, asked: ParsedRequest, digests: tuple[str, ...]) -> None:
        """Remember a call, if its dialect wants it. ``digests``: of its messages."""
        if not asked.is_remembered:
            return
        last: _MessageChain | None = None
        for key, message in list(zip(digests, asked.messages, strict=True))[asked.num_instructions :]:
            known = self._after.get((last, key))
            if known is None:
                known = self._after[last, key] = _MessageChain(self._messages.setdefault(key, message), last)
            last = known
        self._asked[call] = last

    def answered(self, answer: CallAnswered) -> None:
        """Remember the answer of a remembered call, unless it is a failure."""
        if answer.call in self._asked and answer.error is None:
            self._answers[answer.call] = answer.message

    def completed(self, asked: ParsedRequest) -> ParsedRequest:
        """The request with the messages its client left out. Raises ApiError 400 where this session has no such answer."""
        instructions, new = asked.messages[: asked.num_instructions], asked.messages[asked.num_instructions :]
        before = () if asked.goes_on_from is None else self._until(asked.goes_on_from)
        return replace(asked, messages=(*instructions, *before, *(self._in_full(message) for message in new)))

    def _until(self, call: str) -> tuple[Message, ...]:
        messages = [self._answer(call)]
        last = self._asked[call]
        while last is not None:
            messages.append(last.message)
            last = last.before
        return tuple(reversed(messages))

    def _in_full(self, message: Message) -> Message:
        return self._answer(message["turn"]) if is_reference(message) else message

    def _answer(self, call: str) -> Message:
        known = self._answers.get(call)
        if known is None:
            raise bad_request(
                f"call {call[:40]} was not answered in this session, or was asked with store = false: send the whole input",
                "previous_response_id",
                code="previous_response_not_found",
            )
        return {**known, "turn": call}


def reference(call: str) -> Message:
    """Stands for the answer of a call until it is ``completed``."""
    return {"role": "assistant", "turn": call}


def is_reference(message: Message) -> bool:
    """Whether a message only points at an answer."""
    return message.keys() == {"role", "turn"} and isinstance(message["turn"], str)
