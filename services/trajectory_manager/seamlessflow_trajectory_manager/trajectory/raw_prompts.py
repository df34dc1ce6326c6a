"""Raw prompts of one episode: text around which no template is put, and which of them goes on from an earlier turn.

A turn stands for its prompt's text and the text that was sampled, with the token that ended it written out or left out as
its client saw it. A later prompt that begins with that goes on from the turn, whose ids are kept as they were sampled; only
the rest is encoded. Texts are kept as digests, so a prompt is read once, however many turns there are. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from .message_identity import Message, text_of

PROMPT_ROLE = "prompt"


def raw_text(messages: Sequence[Message]) -> str | None:
    """The text of a raw prompt; None for a conversation."""
    if len(messages) != 1 or messages[0].get("role") != PROMPT_ROLE:
        return None
    return text_of(messages[0].get("content"))


class RawPrompts:
    """What was asked and answered without a template."""

    def __init__(self) -> None:
        self._open: dict[str, str] = {}
        self._said: dict[int, dict[bytes, str]] = {}
        """Length in characters, then digest, to the first turn that ends so."""

    def ask(self, call: str, text: str) -> tuple[str | None, str]:
        """The turn that a call's prompt goes on from, the longest where several fit, and the text that is new."""
        self._open[call] = text
        digest, read, found = hashlib.sha256(), 0, None
        for length in sorted(each for each in self._said if each <= len(text)):
            digest.update(_bytes(text[read:length]))
            read = length
            if (parent := self._said[length].get(digest.digest())) is not None:
                found = parent, text[length:]
        return found or (None, text)

    def answered(self, call: str, *said: str) -> None:
        """Remember a turn. ``said``: its sampled text, in each form in which it may come back."""
        prompt = self._open[call]
        for text in said:
            whole = prompt + text
            self._said.setdefault(len(whole), {}).setdefault(hashlib.sha256(_bytes(whole)).digest(), call)

    def drop(self, call: str) -> None:
        """Forget the prompt of a call that is over."""
        self._open.pop(call, None)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
