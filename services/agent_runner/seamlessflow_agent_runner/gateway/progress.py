"""The text of an answer while it is sampled, put together from hints that may be lost, late or double.

It only grows. What a lost hint leaves out, and all that is no text, comes with the whole answer. Pure, futures aside.
"""

from __future__ import annotations

import asyncio

from seamlessflow.contracts import AnswerDelta, CallAnswered


class Progress:
    """Of one call. ``grown`` is done as soon as there is more than when it was asked for."""

    def __init__(self) -> None:
        self.reasoning, self.content = "", ""
        self._grown: asyncio.Future[None] | None = None

    @property
    def grown(self) -> asyncio.Future[None]:
        if self._grown is None or self._grown.done():
            self._grown = asyncio.get_running_loop().create_future()
        return self._grown

    @property
    def has_text(self) -> bool:
        return bool(self.reasoning or self.content)

    def add(self, delta: AnswerDelta) -> None:
        """Take in a hint."""
        self.reasoning = joined(self.reasoning, delta.reasoning_start, delta.reasoning)
        self.content = joined(self.content, delta.content_start, delta.content)
        if self._grown is not None and not self._grown.done():
            self._grown.set_result(None)


def joined(text: str, start: int, more: str) -> str:
    """``text``, and behind it what of ``more``, which begins at ``start``, it does not have. A gap adds nothing."""
    return text if start > len(text) else text + more[len(text) - start :]


class Unsent:
    """What one stream has not said yet of an answer's texts."""

    def __init__(self) -> None:
        self._reasoning, self._content = "", ""

    def take(self, reasoning: str, content: str) -> tuple[str, str]:
        """The new end of both, which is said from now on. A text that does not begin with what was said has none."""
        new = _end(reasoning, self._reasoning), _end(content, self._content)
        self._reasoning, self._content = self._reasoning + new[0], self._content + new[1]
        return new

    def fits(self, answer: CallAnswered) -> bool:
        """Whether what was said is what the answer says."""
        reasoning, content = texts_of(answer)
        return reasoning.startswith(self._reasoning) and content.startswith(self._content)


def _end(whole: str, said: str) -> str:
    return whole[len(said) :] if whole.startswith(said) else ""


def texts_of(answer: CallAnswered) -> tuple[str, str]:
    """Reasoning and content of an answer, empty where it has none."""
    return answer.message.get("reasoning_content") or "", answer.message.get("content") or ""
