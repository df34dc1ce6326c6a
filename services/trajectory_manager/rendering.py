"""Messages to token ids and back: the one seam to tokenizers and chat templates.

Two renderers keep these promises: ``library`` wraps the ``renderers`` package for the model families it renders exactly;
``TemplateRenderer`` here works over any model's own chat template. Ids that were sampled are never encoded again: a
later turn adds only the tokens after them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from seamlessflow.errors import ConfigError

from .identity import Message
from .parsing import Parsed, parse_text
from .template import ChatTemplate
from .tokenizer import ChatTokenizer, read_json


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """The turn that a conversation goes on from."""

    prompt: Callable[[], list[int]]
    """All ids before the sampled ones. A function, since most renderers can do without."""
    sampled: Sequence[int]
    num_messages: int
    """How many of the conversation's messages are up to and including this turn."""


class Renderer(Protocol):
    """Pure: the same answer for the same arguments."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Any of these ends a turn. Ascending."""
        ...

    def render(self, messages: Sequence[Message], tools: list[Any] | None) -> list[int]:
        """The whole prompt for the assistant's next turn. Raises TemplateRefused."""
        ...

    def suffix(self, known: KnownTurn, messages: Sequence[Message], tools: list[Any] | None) -> list[int] | None:
        """The ids between a known turn's last sampled token and the next turn. ``messages``: the whole conversation.

        None: the template shows an earlier turn differently now, so there is no exact prefix. Raises TemplateRefused.
        """
        ...

    def parse(self, sampled: Sequence[int], tools: list[Any] | None) -> Parsed:
        """What a turn's ids say. Never raises: malformed calls are content."""
        ...


class TemplateRenderer:
    """Renders with the model's own template, in full context, and encodes only what is new."""

    def __init__(self, tokenizer: ChatTokenizer, template: ChatTemplate, stop_token_ids: Sequence[int]) -> None:
        if not stop_token_ids:
            raise ConfigError("the model names no end-of-turn token (eos_token in tokenizer_config or generation_config)")
        self._tokenizer, self._template = tokenizer, template
        self._stops = tuple(sorted(set(stop_token_ids)))
        kept = {"<tool_call>", "</tool_call>", "<think>", "</think>"}
        self._hidden = {i for i, text in tokenizer.special.items() if text not in kept} | set(self._stops)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return self._stops

    def render(self, messages: Sequence[Message], tools: list[Any] | None) -> list[int]:
        return self._tokenizer.encode(self._template.render(messages, tools, add_generation_prompt=True))

    def suffix(self, known: KnownTurn, messages: Sequence[Message], tools: list[Any] | None) -> list[int] | None:
        before = self._template.render(messages[: known.num_messages], tools, add_generation_prompt=False)
        after = self._template.render(messages, tools, add_generation_prompt=True)
        end = max(((before.rfind(self._tokenizer.token(stop)), stop) for stop in self._stops), default=(-1, -1))
        if end[0] < 0 or not after.startswith(before):
            return None
        # What follows the turn's own text: its close token, what the template puts behind it, and the new messages.
        return self._after_close(known, end[1], after[end[0] :])

    def _after_close(self, known: KnownTurn, close: int, text: str) -> list[int] | None:
        """``text`` begins with the close token, a hard boundary: what is before it does not change its encoding."""
        ids = self._tokenizer.encode(text)
        if not ids or ids[0] != close:
            return None
        # A turn that ran out of budget has not sampled its close token; then it is part of what follows.
        was_closed = len(known.sampled) > 0 and known.sampled[-1] == close
        return ids[1:] if was_closed else ids

    def parse(self, sampled: Sequence[int], tools: list[Any] | None) -> Parsed:
        text = self._tokenizer.decode([i for i in sampled if i not in self._hidden])
        return parse_text(text, with_tools=bool(tools))


def load_renderer(folder: Path, model_name: str = "") -> Renderer:
    """The renderer of a model folder (config, tokenizer, template). Raises ConfigError that says what is missing.

    ``model_name``: the hub id where known; the ``renderers`` package goes by it.
    """
    from .library import library_renderer

    tokenizer = ChatTokenizer.load(folder, model_name)
    exact = library_renderer(tokenizer)
    if exact is not None:
        return exact
    return TemplateRenderer(tokenizer, ChatTemplate.load(folder, tokenizer.named), stop_ids_of(folder, tokenizer))


def stop_ids_of(folder: Path, tokenizer: ChatTokenizer) -> list[int]:
    """End-of-turn ids: the tokenizer's eos and those of generation_config.json."""
    named = read_json(folder / "generation_config.json").get("eos_token_id")
    listed = named if isinstance(named, list) else [named]
    return [i for i in (*listed, tokenizer.eos_token_id) if isinstance(i, int)]
