"""The trajectory tree of one episode: everything its agent saw and said, each token kept once.

A turn is one answered call. It holds the ids between its parent's last token and its own first (``suffix``: template text,
tool results, new messages) and what the engine sampled. A turn without a parent is a root and its suffix the whole prompt.
Always true: joining suffix and sampled ids from root to turn gives the very ids the engine was fed and sampled, in order.
No I/O; recovery is adding the same turns again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from seamlessflow.contracts import Float32s, Int32s

# Forks: why a request goes on from no exact prefix of what was sampled, and what that costs. Pure.


class ForkCause(StrEnum):
    """What the agent, or the template, made of an earlier turn."""

    TOOLS_CHANGED = "tools_changed"
    """The turn is there, and other tools are offered than it was asked with; tools stand in the prompt."""
    MESSAGES_REMOVED = "messages_removed"
    """The turn is there, and before it stands less than it was asked with: a trimmed or compacted history."""
    MESSAGES_CHANGED = "messages_changed"
    """The turn is there, and before it stands something else than it was asked with, such as other instructions."""
    REWRITTEN_TURN = "rewritten_turn"
    """An assistant's message that no engine sampled stands where a turn was, or behind one."""
    TEMPLATE_CHANGED = "template_changed"
    """The turn is the same, and the template shows it, or what is before it, otherwise than it was sampled."""


@dataclass(frozen=True, slots=True)
class Fork:
    """``near``: the turn that the request would have gone on from, or None where it cannot be told."""

    cause: ForkCause
    near: str | None


def reprefilled_tokens(num_suffix: int, num_parent: int, num_near: int) -> int:
    """Tokens that an engine has seen already, and must be fed again because of a fork.

    num_suffix: tokens the fork does not share with its parent. num_parent, num_near: tokens from root to the end of the
    turn it goes on from, and of the one it would have gone on from (0 where there is none).
    """
    return max(0, min(num_suffix, num_near - num_parent))


Run = tuple[int, int]
"""(weights version, count of tokens)."""


class Turn:
    """One answered call; never changed. ``sampled`` and ``logprobs`` have one length, and ``versions`` add up to it.

    Thousands of trees are open at once, so a turn rests as bytes and its arrays are made when they are read.
    """

    __slots__ = ("_logprobs", "_sampled", "_suffix", "_versions", "call", "cause", "parent", "reprefilled_tokens")

    def __init__(
        self,
        call: str,
        parent: str | None,
        suffix: Int32s,
        sampled: Int32s,
        logprobs: Float32s,
        versions: Iterable[Run],
        cause: ForkCause | None = None,
        reprefilled_tokens: int = 0,
    ) -> None:
        """``cause``: why it is a fork, if it is one: an earlier turn's tokens are no prefix of it, though they should be.

        reprefilled_tokens: what that costs, see forks.
        """
        runs = tuple(versions)
        lengths = len(sampled), len(logprobs), sum(count for _, count in runs)
        assert len(set(lengths)) == 1, f"turn {call}: ids, logprobs and versions have lengths {lengths}"
        self.call, self.parent, self.cause, self.reprefilled_tokens = call, parent, cause, reprefilled_tokens
        self._suffix, self._sampled, self._logprobs = suffix.to_bytes(), sampled.to_bytes(), logprobs.to_bytes()
        self._versions = Int32s(number for run in runs for number in run).to_bytes()

    @property
    def suffix(self) -> Int32s:
        return Int32s.from_bytes(self._suffix)

    @property
    def sampled(self) -> Int32s:
        return Int32s.from_bytes(self._sampled)

    @property
    def logprobs(self) -> Float32s:
        return Float32s.from_bytes(self._logprobs)

    @property
    def versions(self) -> tuple[Run, ...]:
        numbers = list(Int32s.from_bytes(self._versions))
        return tuple(zip(numbers[::2], numbers[1::2], strict=True))

    @property
    def num_sampled(self) -> int:
        return len(self._sampled) // 4

    @property
    def num_tokens(self) -> int:
        """Its own: suffix and sampled."""
        return (len(self._suffix) + len(self._sampled)) // 4

    @property
    def raw_ids(self) -> bytes:
        """Suffix and sampled ids, packed."""
        return self._suffix + self._sampled


UNORDERED_ID_LENGTH = 25
"""Of a call's id when it was random as a whole."""


class Tree:
    """Turns in the order they were added; a parent always comes before its children."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._num_tokens: dict[str, int] = {}
        self._num_roots = 0

    def add(self, turn: Turn) -> None:
        """Raises KeyError for a parent that is not here. Adding the same call again changes nothing."""
        if turn.call in self._turns:
            return
        before = 0 if turn.parent is None else self._num_tokens[turn.parent]
        self._num_tokens[turn.call] = before + turn.num_tokens
        self._turns[turn.call] = turn
        self._num_roots += turn.parent is None

    def __contains__(self, call: object) -> bool:
        return call in self._turns

    def __getitem__(self, call: str) -> Turn:
        return self._turns[call]

    def __iter__(self) -> Iterator[Turn]:
        return iter(self._turns.values())

    def __len__(self) -> int:
        return len(self._turns)

    def num_tokens(self, call: str) -> int:
        """Tokens from root to the end of a turn, prompt and sampled."""
        return self._num_tokens[call]

    def children(self) -> dict[str | None, list[str]]:
        """For each turn, and for None, the turns that go on from it, oldest first (from None: the roots).

        By the ids of their calls, which sort by when they were asked: the order in which tokens were delivered does not count.
        Ids from before they did, which are shorter, keep the order in which they came, and so journals say the same again.
        """
        found: dict[str | None, list[str]] = {None: [], **{call: [] for call in self._turns}}
        for call in sorted(self._turns, key=lambda call: "" if len(call) == UNORDERED_ID_LENGTH else call):
            found[self._turns[call].parent].append(call)
        return found

    def path(self, call: str) -> list[Turn]:
        """Turns from root to ``call``."""
        turns = [self._turns[call]]
        while (parent := turns[-1].parent) is not None:
            turns.append(self._turns[parent])
        return turns[::-1]

    def prompt_ids(self, call: str) -> list[int]:
        """What the engine was fed for a turn: all ids before its first sampled one."""
        ids = self.token_ids(call)
        return list(ids[: len(ids) - self._turns[call].num_sampled])

    def prompt_end(self, parent: str | None, suffix: Int32s, count: int) -> tuple[int, ...]:
        """The last ``count`` ids, or all where there are fewer, of a turn's prompt."""
        raw = suffix.to_bytes()
        while len(raw) < 4 * count and parent is not None:
            turn = self._turns[parent]
            raw, parent = turn.raw_ids + raw, turn.parent
        return tuple(Int32s.from_bytes(raw[-4 * count :]))

    def token_ids(self, call: str) -> Int32s:
        """All ids from root to the end of a turn."""
        return Int32s.from_bytes(b"".join(turn.raw_ids for turn in self.path(call)))

    def longest_prefix(self, call: str, ids: Int32s) -> str | None:
        """The last turn on the way to ``call`` whose ids, from the root on, ``ids`` begin with. None: not even the root's."""
        stored, wanted = self.token_ids(call).to_bytes(), ids.to_bytes()
        for turn in reversed(self.path(call)):
            end = 4 * self._num_tokens[turn.call]
            if wanted[:end] == stored[:end]:
                return turn.call
        return None

    @property
    def num_roots(self) -> int:
        return self._num_roots

    @property
    def num_forks(self) -> int:
        return sum(turn.cause is not None for turn in self)

    @property
    def fork_causes(self) -> dict[str, int]:
        """How many forks of each cause; only causes that there are."""
        return dict(Counter(turn.cause.value for turn in self if turn.cause is not None))

    @property
    def reprefilled_tokens(self) -> int:
        """Tokens that engines had to be fed again because of forks."""
        return sum(turn.reprefilled_tokens for turn in self)


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
