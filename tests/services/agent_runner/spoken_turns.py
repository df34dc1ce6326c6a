"""Scripted turns for a gateway's fake manager, and which turn each call went on from, as the real manager finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seamlessflow_trajectory_manager.rendering.tool_calls import Parsed, ToolCall
from seamlessflow_trajectory_manager.trajectory.call_answers import message_of
from seamlessflow_trajectory_manager.trajectory.messages import Messages
from seamlessflow_trajectory_manager.trajectory.prefix_match import Conversations


def turn(content: str = "", *calls: str, reasoning: str | None = None) -> Parsed:
    """``calls``: the arguments of calls of the tool calc."""
    return Parsed(content, tuple(ToolCall("calc", arguments) for arguments in calls), reasoning)


def held(seconds: float, then: Any = None) -> Any:
    """A reply function: says ``then`` (at last) so many seconds later."""

    async def reply(messages: list[dict[str, Any]], request: Any) -> Any:
        await asyncio.sleep(seconds)
        return then or {"role": "assistant", "content": "at last"}

    return reply


@dataclass
class Script:
    """A reply function: says one turn after the other, with the ids the manager gives, and remembers what it said."""

    turns: Sequence[Parsed]
    seconds: float = 0.0
    said: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def __call__(self, messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
        parsed = self.turns[len(self.said)]
        self.said[request.call] = message_of(parsed, request.call)
        await asyncio.sleep(self.seconds)
        return self.said[request.call]


def parents_of(manager: Any, said: Mapping[str, Mapping[str, Any]]) -> list[int | None]:
    """For each call the number of the call whose turn it went on from; None: it began a conversation.

    Nowhere may stand an assistant's message that is not one of ours.
    """
    conversations, messages, parents = Conversations(said), Messages(), []
    numbers = {call.call: number for number, call in enumerate(manager.calls)}
    for call in manager.calls:
        messages.learn(call.unseen, call.tools)
        history = messages.history(call.messages)
        assert history is not None
        place = conversations.place(history, call.tools)
        assert place is not None and place.fork is None
        parents.append(None if place.parent is None else numbers[place.parent])
        conversations.asked(call.call, history, place)
        conversations.answered(call.call, said[call.call])
    return parents
