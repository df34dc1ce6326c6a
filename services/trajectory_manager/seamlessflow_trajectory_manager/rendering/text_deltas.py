"""What was hinted of answers that are being sampled, by this process: each text once, and never more than is stored.

A process that takes over begins at 0 again; readers drop what they have. What is stored decides: where an answer is not what
was hinted of it, that is counted and logged, and the answer stands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from seamlessflow.contracts import AnswerDelta, CallAnswered
from seamlessflow.telemetry import count
from seamlessflow_trajectory_manager.trajectory.call import Call, Segment

from .base import Renderer, Terms
from .text_stream import NOTHING, Shown, Silent, Streamed

log = structlog.get_logger()


@dataclass(slots=True)
class _Hinted:
    """A text of which only the length, in characters, and a digest are kept."""

    length: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, text: str) -> int:
        """Where it starts."""
        start, self.length = self.length, self.length + len(text)
        self.digest.update(text.encode("utf-8", "surrogatepass"))
        return start

    def begins(self, text: str) -> bool:
        whole = hashlib.sha256(text[: self.length].encode("utf-8", "surrogatepass"))
        return len(text) >= self.length and whole.digest() == self.digest.digest()


@dataclass(slots=True)
class _Open:
    stream: Streamed
    num_read: int = 0
    """Tokens of the generation."""
    reasoning: _Hinted = field(default_factory=_Hinted)
    content: _Hinted = field(default_factory=_Hinted)


class Deltas:
    """Calls that are streamed. ``terms_of``: of a call."""

    def __init__(self, renderer: Renderer, terms_of: Callable[[Call], Terms]) -> None:
        self._renderer, self._terms_of = renderer, terms_of
        self._open: dict[tuple[str, str], _Open] = {}

    def after_segment(self, call: Call) -> AnswerDelta | None:
        """The text that a call's segments let be shown now. None: nothing new, or nobody reads along."""
        request = call.request
        if not request.stream or not request.reply or call.is_answered or call.requested is None:
            return None
        key = request.episode, request.call
        if key not in self._open:
            self._open[key] = _Open(self._renderer.streamed(self._terms_of(call)))
        opened = self._open[key]
        reasoning = content = ""
        while (segment := call.segments.get(opened.num_read)) is not None and len(segment.token_ids):
            opened.num_read += len(segment.token_ids)
            new = self._fed(opened, call, segment)
            reasoning, content = reasoning + new[0], content + new[1]
        if not reasoning and not content:
            return None
        return AnswerDelta(
            run=request.run,
            episode=request.episode,
            call=request.call,
            reasoning_start=opened.reasoning.add(reasoning),
            reasoning=reasoning,
            content_start=opened.content.add(content),
            content=content,
        )

    def _fed(self, opened: _Open, call: Call, segment: Segment) -> Shown:
        try:
            return opened.stream.feed(segment.token_ids)
        except Exception:  # showing is a favour: whatever is wrong with it, the answer comes
            log.exception("stream.given_up", episode=call.request.episode, call=call.request.call)
            opened.stream = Silent()
            return NOTHING

    def answered(self, answer: CallAnswered) -> None:
        """Forget a call, and see that its answer says what was hinted."""
        opened = self._open.pop((answer.episode, answer.call), None)
        if opened is None or answer.error is not None:
            return
        reasoning, content = answer.message.get("reasoning_content"), answer.message.get("content")
        if not opened.reasoning.begins(str(reasoning or "")) or not opened.content.begins(str(content or "")):
            count("answers_unlike_their_deltas")
            log.error("answer.unlike_its_deltas", episode=answer.episode, call=answer.call)
