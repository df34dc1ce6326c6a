"""What a request goes on from, and which ids are new: the run's ``sampling.history`` decides how earlier turns stand there.

as_sampled     the ids they were sampled as; only what follows the last known turn is rendered
as_template    what the template shows now; stored ids are reused as far as they are the same

Either way the prompt is an exact extension of a turn's ids, or of nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from seamlessflow.contracts import Int32s
from seamlessflow_trajectory_manager.rendering.base import KnownTurn, Renderer

from .message_identity import Message
from .prefix_match import Place
from .tree import Fork, ForkCause, Tree, reprefilled_tokens

HEADER_TOKENS = 256
"""Of a turn's prompt, in which its header is found many times over: renderers look no further back."""

HistoryMode = Literal["as_sampled", "as_template"]


@dataclass(frozen=True, slots=True)
class Plan:
    """``parent``: the turn whose ids the prompt begins with; None: ``suffix`` is all of it."""

    parent: str | None
    suffix: Int32s
    cause: ForkCause | None = None
    """Why it is a fork. None: it is none."""
    reprefilled_tokens: int = 0


class Planner:
    """Of one episode's tree."""

    def __init__(self, renderer: Renderer, tree: Tree, history: HistoryMode) -> None:
        self._renderer, self._tree, self._history = renderer, tree, history

    def plan(self, place: Place, messages: Sequence[Message], tools: list[Any] | None) -> Plan:
        """Raises TemplateRefused."""
        if place.parent is None:
            return self._planned(None, Int32s(self._renderer.render(messages, tools)), place.fork)
        if self._history == "as_sampled":
            suffix = self._suffix(place.parent, place.num_known, messages, tools)
            if suffix is not None:
                return self._planned(place.parent, Int32s(suffix), place.fork)
        ids = Int32s(self._renderer.render(messages, tools))
        parent = self._tree.longest_prefix(place.parent, ids)
        fork = place.fork if parent == place.parent else place.fork or Fork(ForkCause.TEMPLATE_CHANGED, place.parent)
        return self._planned(parent, ids[0 if parent is None else self._tree.num_tokens(parent) :], fork)

    def _suffix(self, parent: str, num_known: int, messages: Sequence[Message], tools: list[Any] | None) -> list[int] | None:
        turn = self._tree[parent]
        known = KnownTurn(lambda: list(self._tree.prompt_end(turn.parent, turn.suffix, HEADER_TOKENS)), turn.sampled, num_known)
        return self._renderer.suffix(known, messages, tools)

    def _planned(self, parent: str | None, suffix: Int32s, fork: Fork | None) -> Plan:
        if fork is None:
            return Plan(parent, suffix)
        before = 0 if parent is None else self._tree.num_tokens(parent)
        near = self._tree.num_tokens(fork.near) if fork.near is not None and fork.near in self._tree else 0
        return Plan(parent, suffix, fork.cause, reprefilled_tokens(len(suffix), before, near))
