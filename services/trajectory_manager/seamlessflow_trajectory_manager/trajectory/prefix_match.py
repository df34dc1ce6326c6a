"""Finding the turn that a request goes on from.

A conversation's key chains the identities of its messages, the offered tools first. A known turn stands in the chain for
itself: it is recognised by the tool-call ids we gave it, or else by what it says, and in both cases only where everything
before it is what that turn was asked. So two conversations have one key exactly when their known turns are the same and
the rest means the same.

A request that begins with all of an earlier one stands where that one stood: only what is new is looked at, so the work
does not grow with the history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from .message_identity import KEY_BYTES, Message, chain, identity_of, pointers_in
from .messages import History
from .tree import Fork, ForkCause


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request stands."""

    key: bytes
    tools: str | None
    """Digest of the tools offered."""
    num_messages: int
    parent: str | None = None
    """The last known turn in it."""
    num_known: int = 0
    """Messages up to and including that turn; 0 without one."""
    fork: Fork | None = None
    """Why it does not go on from the turn it would: an assistant's message after the last known turn is none we know here."""


class Conversations:
    """What was asked and answered in one episode. ``turns``: calls that were answered."""

    def __init__(self, turns: Container[str]) -> None:
        self._turns = turns
        self._places: dict[str, Place] = {}
        self._said: dict[bytes, str | tuple[str, ...]] = {}
        """Identity to the turns that said it, oldest first."""
        self._prefixes: dict[bytes, str] = {}
        """All that a call was asked, to the call."""
        self._last: set[int] = set()
        """Hashes of the digests that requests ended with, so that few prefixes are looked up."""

    def asked(self, call: str, history: History, place: Place) -> None:
        """Remember where a call stands."""
        self._places[call] = place
        self._prefixes.setdefault(_prefix(history.digests, place.tools), call)
        if history.digests:
            self._last.add(hash(history.digests[-1]))

    def answered(self, call: str, message: Message) -> None:
        """Remember a turn. Of turns that say the same to the same, the first is the one found without a pointer."""
        identity = identity_of(message)
        before = self._said.get(identity)
        if before is None:
            self._said[identity] = call
        elif before != call and (isinstance(before, str) or call not in before):
            self._said[identity] = (before, call) if isinstance(before, str) else (*before, call)

    def place(self, history: History, tools: str | None, open_calls: Container[str] = ()) -> Place | None:
        """Where a request stands. None: it points at a call that is open here, so an older event is still on its way."""
        place = self._longest_known(history, tools)
        for position in range(place.num_messages, len(history)):
            message = history[position]
            is_turn = message.get("role") == "assistant"
            pointers = tuple(pointers_in(message)) if is_turn else ()
            if any(call in open_calls for call in pointers):
                return None
            place = self._further(place, message, pointers, is_turn=is_turn)
        return place

    def _longest_known(self, history: History, tools: str | None) -> Place:
        digests = history.digests
        for count in range(len(digests), 0, -1):
            if hash(digests[count - 1]) in self._last:
                call = self._prefixes.get(_prefix(digests[:count], tools))
                if call is not None:
                    return self._places[call]
        return Place(_digest(f"tools:{tools or ''}".encode()), tools, 0)

    def _further(self, place: Place, message: Message, pointers: Sequence[str], *, is_turn: bool) -> Place:
        """With one more message."""
        identity, number = identity_of(message), place.num_messages + 1
        if not is_turn:
            return replace(place, key=chain(place.key, identity), num_messages=number)
        candidates = [*(call for call in pointers if call in self._turns), *self._sayers(identity)]
        turn = next((call for call in candidates if call in self._places and self._places[call].key == place.key), None)
        if turn is not None:
            return Place(chain(place.key, b"turn:" + turn.encode()), place.tools, number, turn, number)
        fork = self._fork(place, candidates)
        return replace(place, key=chain(place.key, identity), num_messages=number, fork=fork)

    def _sayers(self, identity: bytes) -> Sequence[str]:
        found = self._said.get(identity, ())
        return (found,) if isinstance(found, str) else found

    def _fork(self, place: Place, candidates: Sequence[str]) -> Fork | None:
        """What an assistant's message means that is no turn here. The first one tells the cause, the last one what is near."""
        before = place.fork
        ours = next((call for call in candidates if call in self._places), None)
        if ours is not None:
            return Fork(before.cause if before else _difference(place, self._places[ours]), ours)
        here = next((call for call in reversed(self._places) if self._places[call].key == place.key), None)
        if here is not None or (place.parent is not None and before is None):
            return Fork(before.cause if before else ForkCause.REWRITTEN_TURN, here)
        return before  # an example that the agent put there from the beginning, or what follows a rewritten turn


def _difference(here: Place, asked: Place) -> ForkCause:
    if here.tools != asked.tools:
        return ForkCause.TOOLS_CHANGED
    if here.num_messages < asked.num_messages:
        return ForkCause.MESSAGES_REMOVED
    return ForkCause.MESSAGES_CHANGED


def _prefix(digests: Sequence[str], tools: str | None) -> bytes:
    return _digest("\0".join((tools or "", *digests)).encode())


def _digest(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()[:KEY_BYTES]
