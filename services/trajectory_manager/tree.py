"""The trajectory tree of one episode: everything its agent saw and said, each token kept once.

A turn is one answered call. It holds the ids between its parent's last token and its own first (``suffix``: template text,
tool results, new messages) and what the engine sampled. A turn without a parent is a root and its suffix the whole prompt.
Always true: joining suffix and sampled ids from root to turn gives the very ids the engine was fed and sampled, in order.
No I/O; recovery is adding the same turns again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from seamlessflow.contracts import Float32s, Int32s

Run = tuple[int, int]
"""(weights version, count of tokens)."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered call. ``sampled`` and ``logprobs`` have one length, and ``versions`` add up to it."""

    call: str
    parent: str | None
    suffix: Int32s
    sampled: Int32s
    logprobs: Float32s
    versions: tuple[Run, ...]
    is_fork: bool = False
    """Its conversation holds an earlier turn otherwise than it was sampled, so that turn's tokens are no prefix of this one."""

    def __post_init__(self) -> None:
        lengths = len(self.sampled), len(self.logprobs), sum(count for _, count in self.versions)
        assert len(set(lengths)) == 1, f"turn {self.call}: ids, logprobs and versions have lengths {lengths}"


class Tree:
    """Turns in the order they were added; a parent always comes before its children."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._children: dict[str | None, list[str]] = {None: []}
        self._num_tokens: dict[str, int] = {}

    def add(self, turn: Turn) -> None:
        """Raises KeyError for a parent that is not here. Adding the same call again changes nothing."""
        if turn.call in self._turns:
            return
        before = 0 if turn.parent is None else self._num_tokens[turn.parent]
        self._turns[turn.call] = turn
        self._num_tokens[turn.call] = before + len(turn.suffix) + len(turn.sampled)
        self._children[turn.parent].append(turn.call)
        self._children[turn.call] = []

    def __contains__(self, call: object) -> bool:
        return call in self._turns

    def __getitem__(self, call: str) -> Turn:
        return self._turns[call]

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns.values())

    def num_tokens(self, call: str) -> int:
        """Tokens from root to the end of a turn, prompt and sampled."""
        return self._num_tokens[call]

    def children(self, call: str | None) -> list[str]:
        """Turns that go on from a turn (None: the roots), oldest first."""
        return self._children[call]

    def path(self, call: str) -> list[Turn]:
        """Turns from root to ``call``."""
        turns = [self._turns[call]]
        while (parent := turns[-1].parent) is not None:
            turns.append(self._turns[parent])
        return turns[::-1]

    def prompt_ids(self, call: str) -> list[int]:
        """What the engine was fed for a turn: all ids before its first sampled one."""
        ids = self.token_ids(call)
        return list(ids[: len(ids) - len(self._turns[call].sampled)])

    def token_ids(self, call: str) -> Int32s:
        """All ids from root to the end of a turn."""
        return join(part for turn in self.path(call) for part in (turn.suffix, turn.sampled))

    @property
    def num_roots(self) -> int:
        return len(self._children[None])

    @property
    def num_forks(self) -> int:
        return sum(turn.is_fork for turn in self._turns.values())


def join(parts: Iterable[Int32s]) -> Int32s:
    """Packed ids one after the other."""
    return Int32s.from_bytes(b"".join(part.to_bytes() for part in parts))


def merge_runs(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Run-length versions with equal neighbours joined and empty ones left out."""
    merged: list[Run] = []
    for version, count in runs:
        if count and merged and merged[-1][0] == version:
            merged[-1] = (version, merged[-1][1] + count)
        elif count:
            merged.append((version, count))
    return tuple(merged)
