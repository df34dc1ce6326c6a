"""A renderer over the model's own chat template: renders in full context, and encodes only what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seamlessflow.errors import ConfigError
from seamlessflow.tokenization.tokenizer import THINK, ChatTokenizer
from seamlessflow_trajectory_manager.trajectory.message_identity import Message

from .base import PLAIN, KnownTurn, Terms, parse_raw, stream_raw
from .chat_template import ChatTemplate, TemplateRefused
from .text_stream import Parts, Streamed, TextStream
from .tool_calls import Parsed, parse_text
from .turn_boundary import after_last, end_of_turn, with_other_turn
from .visible_text import Visible


class TemplateRenderer:
    """Renders with the model's own template, in full context, and encodes only what is new."""

    def __init__(self, tokenizer: ChatTokenizer, template: ChatTemplate, stop_token_ids: Sequence[int]) -> None:
        if not stop_token_ids:
            raise ConfigError("the model names no end-of-turn token (eos_token in tokenizer_config or generation_config)")
        self._tokenizer, self._template = tokenizer, template
        self._stops = tuple(sorted(set(stop_token_ids)))
        self.visible = Visible(tokenizer, self._stops)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stops

    def render(self, messages: Sequence[Message], tools: list[Any] | None) -> list[int]:
        return self._tokenizer.encode(self._template.render(messages, tools, add_generation_prompt=True))

    def suffix(self, known: KnownTurn, messages: Sequence[Message], tools: list[Any] | None) -> list[int] | None:
        found = self._as_before(known, messages, tools) or self._redisplayed(known, messages, tools)
        # What follows the turn's own text: its close token, what the template puts behind it, and the new messages.
        return None if found is None else self._after_close(known, *found)

    def _as_before(self, known: KnownTurn, messages: Sequence[Message], tools: list[Any] | None) -> tuple[int, str] | None:
        """The close token of the turn and the text from it on, where the turn is shown as when it was the last message."""
        start, earlier = self._template.start(known.num_messages), messages[: known.num_messages]
        before = self._template.render(earlier, tools, add_generation_prompt=False, start=start)
        place, close = max((before.rfind(self._tokenizer.token(stop)), stop) for stop in self._stops)
        if place < 0:
            return None
        try:
            other = self._template.render(with_other_turn(earlier), tools, add_generation_prompt=False, start=start)
        except TemplateRefused:  # what was changed in order to see where the turn's own text is
            return None
        if place < after_last(before, other):  # it is the turn's own text, or before it: the turn is shown without one
            return None
        after = self._template.render(messages, tools, add_generation_prompt=True, start=start)
        return (close, after[place:]) if after.startswith(before) else None

    def _redisplayed(self, known: KnownTurn, messages: Sequence[Message], tools: list[Any] | None) -> tuple[int, str] | None:
        """The same where the template shows the turn, or what is before it, otherwise now: it still ends somewhere."""
        start, texts = self._template.start(known.num_messages), {self._tokenizer.token(stop): stop for stop in self._stops}
        try:
            found = end_of_turn(
                lambda changed: self._template.render(changed, tools, add_generation_prompt=True, start=start),
                messages,
                known.num_messages,
                texts,
            )
        except TemplateRefused:  # what was changed in order to see where the turn ends
            return None
        return None if found is None else (texts[found[1]], found[0])

    def _after_close(self, known: KnownTurn, close: int, text: str) -> list[int] | None:
        """``text`` begins with the close token, a hard boundary: what is before it does not change its encoding."""
        ids = self._tokenizer.encode(text)
        if not ids or ids[0] != close:
            return None
        # A turn that ran out of budget has not sampled its close token; then it is part of what follows.
        was_closed = len(known.sampled) > 0 and known.sampled[-1] == close
        return ids[1:] if was_closed else ids

    def parse(self, sampled: Sequence[int], terms: Terms = PLAIN) -> Parsed:
        if terms.is_raw:
            return parse_raw(self.visible, sampled, terms)
        text, stop = self.visible.said(sampled, terms.stop)
        parsed = parse_text(text, with_tools=bool(terms.tools), is_thinking=self._is_thinking(terms))
        return parsed if stop is None else replace(parsed, stop_sequence=stop.text)

    def streamed(self, terms: Terms = PLAIN) -> Streamed:
        if terms.is_raw:
            return stream_raw(self.visible, terms)
        parts = Parts(with_tools=bool(terms.tools), is_thinking=self._is_thinking(terms))
        return TextStream(self.visible.spoken(), terms.stop, parts)

    def _is_thinking(self, terms: Terms) -> bool:
        return self.visible.written(terms.prompt_end).rstrip().endswith(THINK)
