"""What a remote engine asks of a server's dialect, and what it believes of an answer. Pure.

A dialect writes a request and reads the events of its stream; ``Answer`` judges what was read. Always true: what ``Answer``
lets through is a continuation that was asked for, each token with its id and its logprob. Everything else is the server's
fault, and of the event that it is in, nothing counts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from seamlessflow_rollout_worker.engines.base import SamplingParams
from seamlessflow_rollout_worker.engines.remote_errors import ServerNonsense

IMPOSSIBLE_LOGPROB = -9998.0
"""vLLM writes -9999 where it has none; no sampled token is this unlikely."""
ROUNDING = 1e-3
"""A logprob may be this much above 0: of a token that is certain, in the precision that is served."""


class Ending(StrEnum):
    """Why a stream ends."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    """Somebody ended it from outside."""
    CUT = "cut"
    """It just ended; no server says this."""


EARLY = {
    Ending.ABORT: "it ended a request that nobody asked it to end",
    Ending.CUT: "its stream ended before the answer did",
}
"""Endings that are none of the answer, in words for where nobody asked for them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one event."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ending: Ending | None = None
    labels: frozenset[str] = frozenset()
    """The weights that sampled them, where the server says so by name."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to one server: continue ``ids``."""

    request_id: str
    """Of this attempt alone."""
    ids: list[int]
    params: SamplingParams
    max_tokens: int
    label: str | None
    """Name of the weights it is meant for, to keep caches of different ones apart. None: they never change."""
    model: str
    """The name the server gives its model."""


Read = Callable[[Mapping[str, Any]], Piece]
"""Reads the events of one stream, in order; on what it does not know it raises what Python raises."""


class Dialect(Protocol):
    """How one kind of server is asked for tokens."""

    @property
    def path(self) -> str: ...

    def body(self, ask: Ask) -> dict[str, Any]:
        """The request, every parameter that bends the distribution said: servers have defaults of their own."""
        ...

    def reader(self) -> Read: ...

    def names_there(self, request_id: str) -> list[str]:
        """What the server may call the request, for aborting it."""
        ...


class Answer:
    """One stream, judged as it comes. vocab_size: ids lie below it."""

    def __init__(self, ask: Ask, read: Read, *, vocab_size: int) -> None:
        self._ask, self._read, self._vocab_size = ask, read, vocab_size
        self._num_left = ask.max_tokens
        self._last: int | None = None
        """The last token that came."""

    def take(self, event: Mapping[str, Any]) -> Piece:
        """The event's tokens. Raises ServerNonsense."""
        try:
            piece = self._read(event)
            self._check(piece)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError, OverflowError) as wrong:
            raise ServerNonsense(f"an event that cannot be used: {type(wrong).__name__}: {wrong}") from wrong
        self._num_left -= len(piece.token_ids)
        self._last = next(reversed(piece.token_ids), self._last)
        return piece

    def _check(self, piece: Piece) -> None:
        ids, stops = piece.token_ids, self._ask.params.stop_token_ids
        if len(ids) != len(piece.logprobs):
            raise ValueError(f"{len(ids)} token ids and {len(piece.logprobs)} logprobs")
        if len(ids) > self._num_left:
            raise ValueError(f"{len(ids) - self._num_left} tokens more than asked for")
        if not all(type(each) is int and 0 <= each < self._vocab_size for each in ids):
            raise ValueError(f"ids outside 0..{self._vocab_size - 1}")
        if not all(math.isfinite(each) and IMPOSSIBLE_LOGPROB < each <= ROUNDING for each in piece.logprobs):
            raise ValueError("logprobs that are none")
        if any(each in stops for each in ids[:-1]) or (ids and self._last in stops):
            raise ValueError("tokens behind a stop token")
        if piece.ending is Ending.STOP and next(reversed(ids), self._last) not in stops:
            raise ValueError("it stopped at something that was no stop token")
        if piece.ending is Ending.LENGTH and len(ids) != self._num_left:
            raise ValueError(f"it ended for length with {self._num_left - len(ids)} tokens to go")
        if piece.ending is Ending.CUT:
            raise ValueError(f"it ended with {piece.ending.value!r}, which no server says")
        if self._ask.label is not None and not piece.labels <= {self._ask.label}:
            raise ValueError(f"sampled by {sorted(piece.labels)}, expected {self._ask.label}")


def piece_of(
    ids: Sequence[Any] | None, logprobs: Sequence[Any] | None, ending: str | None, labels: frozenset[str] = frozenset()
) -> Piece:
    """From what stands in an event; a missing list is an empty one."""
    return Piece(tuple(ids or ()), tuple(logprobs or ()), None if ending is None else Ending(ending), labels)


def seed_of_attempt(seed: int, position: int) -> int:
    """A seed for servers whose draws count from the beginning of a request: the same for the same beginning, another one for
    each. With the plain seed a continuation would repeat the draws that its beginning was made with.
    """
    digest = hashlib.blake2b(f"{seed}:{position}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
