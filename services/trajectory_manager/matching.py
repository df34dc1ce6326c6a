"""Finding the turn that a request goes on from.

A conversation's key chains the identities of its messages, the offered tools first. A known turn stands in the chain for
itself: it is recognised by the tool-call ids we gave it, or else by what it says, and in both cases only where everything
before it is what that turn was asked. So two conversations have one key exactly when their known turns are the same and
the rest means the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .identity import Message, chain, identity_of, pointers_in


@dataclass(frozen=True, slots=True)
class Known:
    """A message with its identity worked out once."""

    message: Message
    identity: bytes
    pointers: tuple[str, ...]

    @classmethod
    def of(cls, message: Message) -> Known:
        is_turn = message.get("role") == "assistant"
        return cls(message, identity_of(message), tuple(pointers_in(message)) if is_turn else ())

    @property
    def is_turn(self) -> bool:
        return self.message.get("role") == "assistant"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands."""

    key: bytes
    parent: str | None
    """The last known turn in it."""
    num_known: int
    """Messages up to and including that turn; 0 without one."""
    num_foreign: int
    """Assistant's messages after it that are no turn we know: rewritten, or made up by the agent."""


class Conversations:
    """What was asked and answered in one episode."""

    def __init__(self) -> None:
        self._asked: dict[str, bytes] = {}
        self._said: dict[tuple[bytes, bytes], str] = {}

    def answered(self, call: str, asked: bytes, message: Message) -> None:
        """Remember a turn. Of turns that say the same to the same, the first is the one found without a pointer."""
        self._asked[call] = asked
        self._said.setdefault((asked, identity_of(message)), call)

    def place(self, messages: Sequence[Known], tools: str | None) -> Place:
        """``tools``: digest of the tools offered."""
        key = hashlib.sha256(f"tools:{tools or ''}".encode()).digest()
        parent, num_known, num_foreign = None, 0, 0
        for position, known in enumerate(messages, start=1):
            turn = self._turn(key, known) if known.is_turn else None
            if turn is not None:
                parent, num_known, num_foreign = turn, position, 0
            elif known.is_turn:
                num_foreign += 1
            key = chain(key, known.identity if turn is None else b"turn:" + turn.encode())
        return Place(key, parent, num_known, num_foreign)

    def _turn(self, key: bytes, known: Known) -> str | None:
        for call in known.pointers:
            if self._asked.get(call) == key:
                return call
        return self._said.get((key, known.identity))


def missing_turns(messages: Sequence[Known], open_calls: Mapping[str, object]) -> list[str]:
    """Calls that a request points at although they are not answered here yet: an older event is still on its way."""
    return [call for known in messages for call in known.pointers if call in open_calls]
