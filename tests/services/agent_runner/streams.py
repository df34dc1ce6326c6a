"""An answer as it is streamed: its texts in any number of parts, then the rest."""

from __future__ import annotations

from seamlessflow.contracts import CallAnswered
from seamlessflow_agent_runner.gateway.answer_wait import texts_of
from seamlessflow_agent_runner.gateway.dialects.base import ApiDialect, Frame


def streamed(dialect: ApiDialect, frame: Frame, answer: CallAnswered, num_parts: int = 3) -> bytes:
    """All events, with an idle one before the texts and after each part of them."""
    stream = dialect.stream(frame)
    reasoning, content = (parts(text, num_parts) for text in texts_of(answer))
    said = [stream.opening(), stream.idle()]
    said += [stream.more(part, "") + stream.idle() for part in reasoning]
    said += [stream.more("", part) + stream.idle() for part in content]
    return b"".join([*said, stream.ending(answer)])


def parts(text: str, num_parts: int) -> list[str]:
    """At most so many, none empty; joined they are the text."""
    length = max(1, -(-len(text) // num_parts))
    return [text[start : start + length] for start in range(0, len(text), length)]
