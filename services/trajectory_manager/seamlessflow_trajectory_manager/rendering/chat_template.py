"""A model's own chat template: messages to text, in the sandbox and with the helpers that transformers gives it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, overload

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from seamlessflow.errors import BadInput, ConfigError
from seamlessflow.models.model_folder import template_source
from seamlessflow_trajectory_manager.trajectory.message_identity import Message, text_of

from .template_tail import TemplateTail

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TemplateRefused(BadInput):
    """The template does not accept these messages, such as two user turns in a row."""


class ChatTemplate:
    """Text of a conversation. Always the same text for the same messages."""

    def __init__(self, source: str, variables: Mapping[str, str], now: datetime = EPOCH) -> None:
        """``variables``: bos_token and the like. ``now``: what the template takes for the time, always.

        Raises ConfigError when the template does not compile.
        """
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = now.strftime
        try:
            self._template = environment.from_string(source)
            self._tail = TemplateTail.of(environment, source)
        except jinja2.TemplateError as wrong:
            raise ConfigError(f"chat template does not compile: {wrong}") from wrong
        self._variables = dict(variables)

    @classmethod
    def load(cls, folder: Path, variables: Mapping[str, str], now: datetime) -> ChatTemplate:
        """Raises ConfigError when the folder brings no template."""
        source = template_source(folder)
        if source is None:
            raise ConfigError(f"{folder}: no chat_template.jinja and none in tokenizer_config.json; agents need one")
        return cls(source, variables, now)

    def render(
        self, messages: Sequence[Message], tools: list[Any] | None, *, add_generation_prompt: bool, start: int = 0
    ) -> str:
        """Raises TemplateRefused with the template's own words.

        start: 0, or what ``start`` gives: only the text from that message on, which does not depend on how many come before.
        """
        variables = {"tools": tools, "documents": None, "add_generation_prompt": add_generation_prompt, **self._variables}
        try:
            if start and self._tail is not None:
                return self._tail.text(start, _Ready(messages), **variables)
            return self._template.render(messages=[_for_template(message) for message in messages], **variables)
        except Exception as wrong:  # a template runs code of its author's: whatever it raises, it refuses
            raise TemplateRefused(f"the model's chat template refuses these messages: {wrong}") from wrong

    def start(self, num_before: int) -> int:
        """From where to render in order to see how a conversation goes on after ``num_before`` messages: the last of them,
        or 0 where all have to be rendered.

        Whatever follows them, the text before it is the same.
        """
        return 0 if self._tail is None or num_before < 2 else num_before - 1


class _Ready(Sequence[Mapping[str, Any]]):
    """Messages made ready as they are read."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._ready: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | list[Mapping[str, Any]]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        if position not in self._ready:
            self._ready[position] = _for_template(self._messages[position])
        return self._ready[position]


def _for_template(message: Message) -> dict[str, Any]:
    """Plain text content, and tool arguments as a map wherever they are one: templates iterate over them."""
    ready = {**message, "content": text_of(message.get("content"))}
    if message.get("tool_calls"):
        ready["tool_calls"] = [_with_map(call) for call in message["tool_calls"]]
    return ready


def _with_map(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    try:
        parsed = json.loads(function["arguments"])
        if "\\u" in function["arguments"]:
            json.dumps(parsed, ensure_ascii=False).encode()  # half a surrogate pair can be escaped, and never encoded
    except (KeyError, TypeError, ValueError, RecursionError):
        return {**call, "function": function}
    return {**call, "function": {**function, "arguments": parsed if isinstance(parsed, dict) else function["arguments"]}}


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
