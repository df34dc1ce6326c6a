"""What was said in a session, for clients that leave it out and point at an earlier answer instead.

It lives as long as the session, and its agent does not outlive that. A message that many calls bring is kept once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .dialect import Asked
from .errors import bad_request

if TYPE_CHECKING:
    from .calls import Call

Message = dict[str, Any]


class Memory:
    """Of one session."""

    def __init__(self) -> None:
        self._messages: dict[str, Message] = {}
        self._said: dict[str, tuple[Call, tuple[str, ...]]] = {}
        """By call: itself, and the digests of what it was asked, instructions left out."""

    def note(self, call: Call, asked: Asked, digests: tuple[str, ...]) -> None:
        """Remember a call, if its dialect wants it. ``digests``: of its messages."""
        if asked.is_remembered:
            self._messages.update(zip(digests, asked.messages, strict=True))
            self._said[call.id] = (call, digests[asked.num_instructions :])

    def completed(self, asked: Asked) -> Asked:
        """The request with what its client left out. Raises ApiError 400 where that was not said here."""
        instructions, new = asked.messages[: asked.num_instructions], asked.messages[asked.num_instructions :]
        before = () if asked.goes_on_from is None else self._until(asked.goes_on_from)
        return replace(asked, messages=(*instructions, *before, *(self._in_full(message) for message in new)))

    def _until(self, call: str) -> tuple[Message, ...]:
        answer = self._answer(call)
        return (*(self._messages[key] for key in self._said[call][1]), answer)

    def _in_full(self, message: Message) -> Message:
        return self._answer(message["turn"]) if is_reference(message) else message

    def _answer(self, call: str) -> Message:
        known, _ = self._said.get(call, (None, ()))
        if known is None or not _is_answered(known):
            raise bad_request(
                f"call {call} was not answered in this session, or was asked with store = false: send the whole input",
                "previous_response_id",
                code="previous_response_not_found",
            )
        return {**known.answer.result().message, "turn": call}


def _is_answered(call: Call) -> bool:
    over = call.answer.done() and not call.answer.cancelled() and call.answer.exception() is None
    return over and call.answer.result().error is None


def reference(call: str) -> Message:
    """Stands for the answer of a call until it is ``completed``."""
    return {"role": "assistant", "turn": call}


def is_reference(message: Message) -> bool:
    """Whether a message only points."""
    return message.keys() == {"role", "turn"} and isinstance(message["turn"], str)
