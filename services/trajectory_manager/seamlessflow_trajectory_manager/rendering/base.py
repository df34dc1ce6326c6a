"""What every renderer promises: messages to token ids and back, the one seam to tokenizers and chat templates.

Two keep these promises: ``renderers_library`` wraps the ``renderers`` package for the model families that it renders exactly;
``template_renderer`` works over any model's own chat template. Ids that were sampled are never encoded again: a later turn adds
only the tokens after them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from seamlessflow_trajectory_manager.trajectory.message_identity import Message

from .text_stream import Streamed, TextStream
from .tool_calls import Parsed
from .visible_text import Visible

PROMPT_END_TOKENS = 64
"""Ids of a prompt's end in which the assistant's header is found."""


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """The turn that a conversation goes on from."""

    prompt: Callable[[], list[int]]
    """The last ids before the sampled ones, the assistant's header among them. A function, since not every renderer reads
    them."""
    sampled: Sequence[int]
    num_messages: int
    """How many of the conversation's messages are up to and including this turn."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What of a call decides how its answer's ids are read."""

    tools: list[Any] | None = None
    """Tools that may be called; None: what looks like a call is text."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are no part of it."""
    prompt_end: tuple[int, ...] = ()
    """The last ids before the sampled ones, the assistant's header among them: a template may open the thoughts there."""
    is_raw: bool = False
    """A completion without any template: its text is all there is."""


PLAIN = Terms()


class Renderer(Protocol):
    """Pure: the same answer for the same arguments."""

    @property
    def visible(self) -> Visible:
        """The ids' text."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Any of these ends a turn. Ascending."""
        ...

    def render(self, messages: Sequence[Message], tools: list[Any] | None) -> list[int]:
        """The whole prompt for the assistant's next turn. Raises TemplateRefused."""
        ...

    def suffix(self, known: KnownTurn, messages: Sequence[Message], tools: list[Any] | None) -> list[int] | None:
        """The ids between a known turn's last sampled token and the next turn. ``messages``: the whole conversation.

        However the template shows earlier turns now, their ids stay. None: it does not show where the turn ends. Raises
        TemplateRefused.
        """
        ...

    def parse(self, sampled: Sequence[int], terms: Terms = PLAIN) -> Parsed:
        """What a turn's ids say. Never raises: malformed calls are content."""
        ...

    def streamed(self, terms: Terms = PLAIN) -> Streamed:
        """The same while it is sampled; what it shows is what ``parse`` of all the ids begins with."""
        ...


def parse_raw(visible: Visible, sampled: Sequence[int], terms: Terms) -> Parsed:
    """A completion without a template."""
    text, stop = visible.said(sampled, terms.stop)
    return Parsed(text, stop_sequence=None if stop is None else stop.text)


def stream_raw(visible: Visible, terms: Terms) -> Streamed:
    """The same, read along."""
    return TextStream(visible.spoken(), terms.stop, None)
