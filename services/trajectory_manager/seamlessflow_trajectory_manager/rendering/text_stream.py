"""The text of an answer while it is sampled: as much of reasoning and content as can no longer change. Pure.

    ids ──Spoken──▶ certain text ──StopGate──▶ text before the stop ──Parts──▶ reasoning, content

Held back are half a character, what may begin a stop text or a marker, and white space that parsing may strip; after a tool
call has begun nothing more is shown. Always true, for any ids in any portions: what was shown only grows, and the final
message's ``reasoning_content`` and ``content`` begin with it. The cost of a token does not grow with what came before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Protocol

from seamlessflow.tokenization.detokenizer import Spoken
from seamlessflow.tokenization.stop_strings import first_stop, num_held
from seamlessflow.tokenization.tokenizer import CALL, THINK, THOUGHT

Shown = tuple[str, str]
"""New text of reasoning and of content."""
NOTHING: Shown = ("", "")


class Streamed(Protocol):
    """One answer, read along."""

    def feed(self, ids: Iterable[int]) -> Shown:
        """What the next ids let be shown, beyond what was returned before."""
        ...


class Silent:
    """Shows nothing."""

    def feed(self, ids: Iterable[int]) -> Shown:
        return NOTHING


class TextStream:
    """An answer whose text says what it means. ``parts`` None: all of it is content."""

    def __init__(self, spoken: Spoken, stops: Sequence[str], parts: Parts | None) -> None:
        self._spoken, self._gate, self._parts = spoken, StopGate(stops), parts

    def feed(self, ids: Iterable[int]) -> Shown:
        text = self._gate.feed("".join([self._spoken.add(each) for each in ids]))
        return self._parts.feed(text) if self._parts is not None else ("", text)


class StopGate:
    """Lets text through until a stop text is complete; see ``first_stop`` for which."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.held = ""
        """Text that may be the beginning of a stop text."""
        self.is_closed = False
        self._stops = stops

    def feed(self, text: str) -> str:
        if self.is_closed or not text:
            return ""
        text = self.held + text
        found = first_stop(text, self._stops)
        if found is not None:
            self.is_closed, self.held = True, ""
            return text[: found.start]
        sure = len(text) - num_held(text, self._stops)
        self.held = text[sure:]
        return text[:sure]


class _At(Enum):
    BEGIN = auto()
    THOUGHTS = auto()
    CONTENT = auto()
    CALLS = auto()
    """Nothing more is shown: only the whole answer tells calls from text."""


class Parts:
    """Tells reasoning and content apart as ``parse_text`` does."""

    def __init__(self, *, with_tools: bool, is_thinking: bool) -> None:
        self._with_tools, self._is_thinking = with_tools, is_thinking
        self._at = _At.BEGIN
        self._held = ""
        self._strips = False
        """Newlines at the beginning of this part are still to be stripped."""

    def feed(self, text: str) -> Shown:
        if self._at is _At.CALLS or not text:
            return NOTHING
        self._held += text
        if self._at is _At.BEGIN and not self._begin():
            return NOTHING
        reasoning = self._think() if self._at is _At.THOUGHTS else ""
        return reasoning, self._speak() if self._at is _At.CONTENT else ""

    def _begin(self) -> bool:
        """Whether it is known what the text begins with."""
        if self._held.startswith(THINK):
            self._held = self._held.removeprefix(THINK)
        elif THINK.startswith(self._held):
            return False
        elif not self._is_thinking:
            self._at = _At.CONTENT
            return True
        self._at, self._strips = _At.THOUGHTS, True
        return True

    def _think(self) -> str:
        self._strip()
        thoughts, mark, content = self._held.partition(THOUGHT)
        if mark:
            self._held, self._at, self._strips = content, _At.CONTENT, True
            return thoughts.rstrip("\n")
        return self._show(thoughts[: len(thoughts) - num_held(thoughts, (THOUGHT,))].rstrip("\n"))

    def _speak(self) -> str:
        self._strip()
        if not self._with_tools:
            return self._show(self._held)
        content, mark, _ = self._held.partition(CALL)
        if mark:
            self._held, self._at = "", _At.CALLS
            return content.rstrip()
        return self._show(content[: len(content) - num_held(content, (CALL,))].rstrip())

    def _strip(self) -> None:
        if self._strips:
            self._held = self._held.lstrip("\n")

    def _show(self, sure: str) -> str:
        self._held = self._held[len(sure) :]
        self._strips = self._strips and not sure
        return sure
