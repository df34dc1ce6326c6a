"""Where a turn ends in a text that shows it otherwise than when it was the last one, as templates that hide thoughts do.

The turn is changed a little at its end, and the message after it at its beginning: what is the same in all three texts
between the two is what the template puts there, and the stop token in it closes the turn. Where there is none, or more
than one, or where the change is not seen at all, nothing is made up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

from seamlessflow_trajectory_manager.trajectory.message_identity import Message, text_of


def end_of_turn(
    render: Callable[[Sequence[Message]], str], messages: Sequence[Message], num_known: int, stops: Iterable[str]
) -> tuple[str, str] | None:
    """The text from the turn's closing token on, and that token. ``num_known``: messages up to and including the turn.

    None: it cannot be told. Raises what ``render`` raises.
    """
    if not 0 < num_known < len(messages):
        return None
    text = render(messages)
    begin = len(text) - _num_common(text[::-1], render(_With(messages, num_known - 1, _longer(messages[num_known - 1])))[::-1])
    end = _num_common(text, render(_With(messages, num_known, _other(messages[num_known]))))
    if begin == 0 or end == len(text):
        return None
    between = text[begin:end]
    found = [stop for stop in stops for _ in range(between.count(stop))]
    return (text[begin + between.index(found[0]) :], found[0]) if len(found) == 1 else None


def _num_common(one: str, other: str) -> int:
    """Characters that both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def with_other_turn(messages: Sequence[Message]) -> Sequence[Message]:
    """Messages, the last of which begins and ends otherwise."""
    return _With(messages, len(messages) - 1, _longer(_other(messages[-1])))


def after_last(text: str, other: str) -> int:
    """Where what follows the last message's own text begins. ``other``: the text ``with_other_turn``."""
    return max(_num_common(text, other), len(text) - _num_common(text[::-1], other[::-1]))


def _longer(turn: Message) -> Message:
    """The same with another end, of its text and of its last call."""
    changed = {**turn, "content": _and_one(text_of(turn.get("content")))}
    calls = list(turn.get("tool_calls") or ())
    if calls:
        changed["tool_calls"] = [*calls[:-1], _longer_call(calls[-1])]
    return changed


def _longer_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    try:
        arguments = json.loads(function.get("arguments") or "")
    except (TypeError, ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        function["arguments"] = json.dumps({**arguments, max(arguments, key=len, default="") + "x": "one"})
    else:
        function["arguments"] = _and_one(str(function.get("arguments") or ""))
    return {**call, "function": function}


def _and_one(text: str) -> str:
    return text + ("y" if text.endswith("x") else "x")


def _other(message: Message) -> Message:
    text = text_of(message.get("content"))
    return {**message, "content": ("y" if text.startswith("x") else "x") + text}


class _With(Sequence[Message]):
    """Messages with one replaced."""

    def __init__(self, messages: Sequence[Message], index: int, message: Message) -> None:
        self._messages, self._index, self._message = messages, index, message

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        return self._message if position == self._index else self._messages[position]
