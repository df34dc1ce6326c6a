"""Forks: why a request goes on from no exact prefix of what was sampled, and what that costs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ForkCause(StrEnum):
    """What the agent, or the template, made of an earlier turn."""

    TOOLS_CHANGED = "tools_changed"
    """The turn is there, and other tools are offered than it was asked with; tools stand in the prompt."""
    MESSAGES_REMOVED = "messages_removed"
    """The turn is there, and before it stands less than it was asked with: a trimmed or compacted history."""
    MESSAGES_CHANGED = "messages_changed"
    """The turn is there, and before it stands something else than it was asked with, such as other instructions."""
    REWRITTEN_TURN = "rewritten_turn"
    """An assistant's message that no engine sampled stands where a turn was, or behind one."""
    TEMPLATE_CHANGED = "template_changed"
    """The turn is the same, and the template shows it, or what is before it, otherwise than it was sampled."""


@dataclass(frozen=True, slots=True)
class Fork:
    """``near``: the turn that the request would have gone on from, or None where it cannot be told."""

    cause: ForkCause
    near: str | None


def reprefilled_tokens(num_suffix: int, num_parent: int, num_near: int) -> int:
    """Tokens that an engine has seen already, and must be fed again because of a fork.

    num_suffix: tokens the fork does not share with its parent. num_parent, num_near: tokens from root to the end of the
    turn it goes on from, and of the one it would have gone on from (0 where there is none).
    """
    return max(0, min(num_suffix, num_near - num_parent))
