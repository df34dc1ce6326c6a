"""The ``renderers`` package behind our interface: exact token-level renderers of the common model families.

It is imported only when the model is one of its own, since its import takes half a second.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import structlog

from seamlessflow.errors import ConfigError
from seamlessflow.tokenization.detokenizer import BROKEN, Spoken
from seamlessflow.tokenization.stop_strings import num_held
from seamlessflow.tokenization.tokenizer import CALL, THINK, THOUGHT, ChatTokenizer
from seamlessflow_trajectory_manager.trajectory.message_identity import Message, text_of

from .base import PLAIN, KnownTurn, Renderer, Terms, parse_raw, stream_raw
from .chat_template import EPOCH, TemplateRefused
from .text_stream import NOTHING, Shown, StopGate, Streamed
from .tool_calls import Parsed, ToolCall
from .visible_text import Visible

# Reading along with a model that the ``renderers`` package parses: only its parser says what is reasoning and content.
#
# So it is asked once for each stretch between think markers, when the stretch's first word is there; from then on the text is
# followed. Whatever it does not confirm, and all that comes after a token of the tool grammar, waits for the whole answer.
# A few families take back text for what comes behind it, such as a role's token in the middle of an answer; that is not known
# here, and ``deltas`` counts it. Pure.


_MARK = re.compile("|".join(map(re.escape, (THINK, THOUGHT, CALL))))
_MARKS = (THINK, THOUGHT, CALL)
_MAX_ASKED = 8
"""Times the parser is asked about one stretch; each time costs what was sampled so far."""
_TAG_CHARACTERS = 32
"""A tag of the tool grammar, until the token that closes the stream, is shorter."""


class LibraryStream:
    """``parse``: the whole answer's parser. ``grammar``: ids after which nothing is shown."""

    def __init__(
        self,
        spoken: Spoken,
        stops: Sequence[str],
        *,
        parse: Callable[[Sequence[int]], Parsed],
        grammar: Container[int],
        with_tools: bool,
    ) -> None:
        self._spoken, self._gate, self._parse = spoken, StopGate(stops), parse
        self._grammar, self._with_tools = grammar, with_tools
        self._ids = array("i")
        self._text = ""
        """Of this stretch, what was not shown yet."""
        self._part: str | None = None
        """What this stretch is: reasoning or content. None: not known yet."""
        self._has_thought = False
        self._is_closed = False
        self._num_asked = 0

    def feed(self, ids: Iterable[int]) -> Shown:
        reasoning = content = ""
        for each in ids:
            if self._is_closed or each in self._grammar:
                self._close()
                break
            self._ids.append(each)
            if new := self._gate.feed(self._spoken.add(each)):
                self._text += new
                shown = self._follow()
                reasoning, content = reasoning + shown[0], content + shown[1]
            if self._gate.is_closed:
                self._close()
        return reasoning, content

    def _follow(self) -> Shown:
        """What is new and certain, over the markers in it."""
        mark = _MARK.search(self._text)
        if mark is None:
            return self._show(is_whole=False)
        rest, self._text = self._text[mark.end() :], self._text[: mark.start()]
        if mark.group() != THOUGHT:
            # The parser may drop this marker, and bytes on both sides of it are one character then.
            self._text = self._text.rstrip(BROKEN)
        reasoning, content = self._show(is_whole=True)
        self._pass(mark.group())
        if self._is_closed:
            return reasoning, content
        self._text = rest
        more = self._follow()
        return reasoning + more[0], content + more[1]

    def _pass(self, mark: str) -> None:
        """A stretch ends: only thoughts that are closed, and markers around nothing, let another follow."""
        if mark == CALL or self._part == "content" or (self._part == "reasoning" and mark != THOUGHT):
            self._close()
        self._part, self._num_asked = None, 0

    def _show(self, *, is_whole: bool) -> Shown:
        """Of this stretch. ``is_whole``: it ends here."""
        if self._part is None:
            self._text = self._text.lstrip()
            if not self._text:
                return NOTHING
            self._part = self._asked(is_whole=is_whole)
            if self._part is None:
                return NOTHING
        sure = self._text.rstrip() if is_whole else self._sure(self._text)
        self._text = self._text[len(sure) :]
        return (sure, "") if self._part == "reasoning" else ("", sure)

    def _asked(self, *, is_whole: bool) -> str | None:
        """Where the parser puts this stretch, of which nothing was shown yet."""
        if is_whole or (self._with_tools and self._text[0] in "{["):
            self._close()  # it ended before the parser confirmed it; or it may be a call without any marker
            return None
        self._num_asked += 1
        parsed, said = self._parse(self._ids), (self._text + self._gate.held).rstrip()
        if not parsed.tool_calls and not self._has_thought and parsed.reasoning == said and not parsed.content:
            self._has_thought = True
            return "reasoning"
        if not parsed.tool_calls and parsed.content == said:
            return "content"
        if self._num_asked >= _MAX_ASKED:
            self._close()
        return None

    def _sure(self, stretch: str) -> str:
        sure = stretch[: len(stretch) - num_held(stretch, _MARKS)]
        if self._with_tools:  # a tag of the tool grammar may have begun
            tag = sure.rfind("<", max(0, len(sure) - _TAG_CHARACTERS))
            sure = sure if tag < 0 else sure[:tag]
        return sure.rstrip()

    def _close(self) -> None:
        self._is_closed, self._text, self._ids = True, "", array("i")


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
