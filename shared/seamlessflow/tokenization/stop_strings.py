"""Texts that end an answer: which of them came first, wherever token borders lie. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopFound:
    """``text`` stands at ``start`` of the searched text; the answer is what is before it."""

    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def first_stop(text: str, stops: Iterable[str]) -> StopFound | None:
    """The stop text that is complete first; of several that end at one place the longest. Empty ones stop nothing.

    Complete first, not begun first: so the answer is the same whether it is read character by character or all at once.
    """
    found = [StopFound(at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
    return min(found, key=lambda each: (each.end, each.start), default=None)


def num_held(text: str, stops: Iterable[str]) -> int:
    """Characters at the end of ``text``, which holds no stop text, that may be the beginning of one: not to be shown yet."""
    lengths = (n for stop in stops for n in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:n]))
    return max(lengths, default=0)
