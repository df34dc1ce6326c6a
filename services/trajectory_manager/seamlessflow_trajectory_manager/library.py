"""The ``renderers`` package behind our interface: exact token-level renderers of the common model families.

It is imported only when the model is one of its own, since its import takes half a second.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import structlog

from seamlessflow.errors import ConfigError
from seamlessflow.text.tokenizer import ChatTokenizer

from .identity import Message, text_of
from .library_stream import LibraryStream
from .parsing import Parsed, ToolCall
from .rendering import PLAIN, KnownTurn, Renderer, Terms, parse_raw, stream_raw
from .streaming import Streamed
from .template import EPOCH, TemplateRefused
from .visible import Visible

log = structlog.get_logger()

_DATE = "conversation_start_date"
"""Setting of families that show the date: today's, unless it is given."""


def library_renderer(tokenizer: ChatTokenizer, family: str | None = None, now: datetime = EPOCH) -> Renderer | None:
    """The exact renderer of a model known by its hub id (or of a named family); None when there is none.

    ``now``: what a family that shows the date takes for the time, always. Raises ConfigError where the package knows the
    model and cannot render it with this tokenizer.

    A fine-tune under another name may have another template, so it is rendered with its own.
    """
    if family is None and (not tokenizer.name_or_path or find_spec("renderers") is None):
        return None
    base: Any = import_module("renderers.base")
    known = family or base.MODEL_RENDERER_MAP.get(tokenizer.name_or_path)
    if known is None:
        return None
    try:
        config: Any = import_module("renderers.configs").config_from_name(known)
        if _DATE in type(config).model_fields and getattr(config, _DATE) is None:
            config = config.model_copy(update={_DATE: now.date().isoformat()})
        keeping = config.model_copy(update={"thinking_retention": "all"})
        return LibraryRenderer(base.create_renderer(tokenizer, config), tokenizer, base.create_renderer(tokenizer, keeping))
    except Exception as wrong:  # the package has no error class of its own
        raise ConfigError(f"no {known} renderer can be made for {tokenizer.name_or_path or 'this model'}: {wrong}") from wrong


class LibraryRenderer:
    """One of the package's renderers.

    ``keeping``: the same one, told to keep earlier thoughts. It bridges turns, whose ids stay as they were sampled whatever
    the template would show of them.
    """

    def __init__(self, renderer: Any, tokenizer: ChatTokenizer, keeping: Any) -> None:
        self._renderer, self._keeping = renderer, keeping
        self.visible = Visible(tokenizer, self.stop_token_ids)
        self._grammar = tokenizer.grammar_ids()

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._renderer.get_stop_token_ids()))

    def render(self, messages: Sequence[Message], tools: list[Any] | None) -> list[int]:
        try:
            ids = self._renderer.render_ids([_plain(m) for m in messages], tools=tools, add_generation_prompt=True)
        except Exception as wrong:  # the package has no error class of its own
            raise TemplateRefused(f"the model's renderer refuses these messages: {wrong}") from wrong
        return list(ids)

    def suffix(self, known: KnownTurn, messages: Sequence[Message], tools: list[Any] | None) -> list[int] | None:
        prompt, sampled = known.prompt(), list(known.sampled)
        new = [_plain(m) for m in messages[known.num_messages :]]
        try:
            bridged = self._keeping.bridge_to_next_turn(prompt, sampled, new, tools=tools)
        except Exception as wrong:  # the package has no error class of its own
            raise TemplateRefused(f"the model's renderer refuses these messages: {wrong}") from wrong
        if bridged is None:
            return None
        length = len(prompt) + len(sampled)
        # The package may trim to the end of the turn; only an untouched prefix is an extension of what was sampled.
        return list(bridged.token_ids[length:]) if bridged.token_ids[:length] == prompt + sampled else None

    def parse(self, sampled: Sequence[int], terms: Terms = PLAIN) -> Parsed:
        if terms.is_raw:
            return parse_raw(self.visible, sampled, terms)
        text, stop = self.visible.said(sampled, terms.stop)
        if stop is not None:
            parsed = self.parse(self.visible.before(sampled, stop.start), replace(terms, stop=()))
            return replace(parsed, stop_sequence=stop.text)
        try:
            return self._parsed(sampled, terms)
        except Exception as wrong:  # the package has no error class of its own, and the turn is kept whatever it says
            log.warning("turn.unparsed", num_tokens=len(sampled), reason=f"{type(wrong).__name__}: {wrong}")
            return Parsed(text)

    def streamed(self, terms: Terms = PLAIN) -> Streamed:
        if terms.is_raw:
            return stream_raw(self.visible, terms)
        plain = replace(terms, stop=())
        return LibraryStream(
            self.visible.spoken(),
            terms.stop,
            parse=lambda ids: self.parse(ids, plain),
            grammar=self._grammar,
            with_tools=bool(terms.tools),
        )

    def _parsed(self, sampled: Sequence[int], terms: Terms) -> Parsed:
        tools = terms.tools
        parsed = self._renderer.parse_response(list(sampled), tools=tools, prompt_ids=list(terms.prompt_end) or None)
        good = [call for call in parsed.tool_calls if str(call.status) == "ok" and call.name] if tools else []
        bad = [call for call in parsed.tool_calls if call not in good]
        # Families differ in what they strip, and some strip thoughts only once they are closed; streams need one rule.
        content = "".join((parsed.content.strip(), *(call.raw for call in bad)))
        reasoning = None if parsed.reasoning_content is None else parsed.reasoning_content.strip()
        calls = tuple(ToolCall(call.name, _as_text(call.arguments)) for call in good)
        return Parsed(content, calls, reasoning, len(bad) if tools else 0)


def _as_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _plain(message: Message) -> dict[str, Any]:
    return {**message, "content": text_of(message.get("content"))}
