"""The text of sampled ids, told token by token, each character once and only when it can no longer change.

A character may be spread over several tokens; until its last byte is there, decoding shows U+FFFD in its place. So a decode
that ends in U+FFFD is not believed there. Only a window of the last tokens is decoded for each new one, so that the cost of
a token does not grow with what was said before.

Always true: what ``add`` returned for a sequence of ids depends on nothing but these ids, so it does not matter in how many
pieces, processes or lives they came; for decoders that are prefix-stable (byte-level ones, Metaspace) it is a prefix of
what decoding all visible ids at once gives.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

BROKEN = "\ufffd"
"""What a decoder writes for bytes that are no character (yet)."""
_MOST_BROKEN = 3
"""A character has at most four bytes, so at most so many at the end may still become one."""
_LONG = 8
"""Tokens of the window at which it is cut to those since the last sure character."""
_TOO_LONG = 24
"""Tokens without any sure character after which the window is cut all the same: these bytes become no text any more."""


class Spoken:
    """One turn as it is being sampled. ``decode``: ids to text. ``hidden``: ids that are no text."""

    def __init__(self, decode: Callable[[Sequence[int]], str], hidden: Container[int] = ()) -> None:
        self._decode, self._hidden = decode, hidden
        self._window: list[int] = []
        self._said = ""
        """What was said of the window's text."""
        self._sure = 0
        """Tokens of the window whose text was complete when the last of them came."""

    def add(self, token_id: int) -> str:
        """One more sampled id: the text that it makes certain, often empty."""
        if token_id in self._hidden:
            return ""
        self._window.append(token_id)
        text, num_said = self._decode(self._window), len(self._said)
        certain = max(len(text.rstrip(BROKEN)), len(text) - _MOST_BROKEN, num_said)
        if text.endswith(BROKEN) and not text.startswith(self._said):
            # Byte-fallback decoders show all of a run of bytes as broken until its last character is whole again.
            certain = num_said
        fresh = text[num_said:certain]
        self._said += fresh
        if not text.endswith(BROKEN):
            self._said = text
            self._cut_at_sure()
        elif len(self._window) > _TOO_LONG:
            self._cut_anywhere(num_unsaid=max(0, len(text) - certain))
        return fresh

    def rest(self) -> str:
        """What was not certain, when no more ids will come."""
        return self._decode(self._window)[len(self._said) :]

    def _cut_at_sure(self) -> None:
        """Keep as context what came since the last sure character: decoders look at the token before."""
        if len(self._window) > _LONG:
            del self._window[: self._sure]
            self._said = self._decode(self._window)
        self._sure = len(self._window)

    def _cut_anywhere(self, *, num_unsaid: int) -> None:
        del self._window[:-_LONG]
        self._sure = 0
        text = self._decode(self._window)
        self._said = text[: max(0, len(text) - num_unsaid)]
