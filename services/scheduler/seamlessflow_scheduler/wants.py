"""Kinds of nodes that a run needs at least one of, and in words what it waits for and who could be it. Pure.

A kind is a role, and for what samples or runs agents also the tag that the work carries: a run whose agents need
``h800+rollout`` lacks a node as long as none has both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seamlessflow.contracts import Service
from seamlessflow.contracts.tags import ROLES, needed_tag

from .policy.base import ROLLOUT, TRAIN, Demand, Node

MANAGER, RUNNER = Service.TRAJECTORY_MANAGER.value, Service.AGENT_RUNNER.value
_TO_SAY = {
    MANAGER: "no trajectory-manager",
    RUNNER: "no agent-runner",
    TRAIN: "no node with capability train",
    ROLLOUT: "no node with capability rollout",
}
MOST_NAMED = 3
"""Nodes that a hint names; the others are counted."""


@dataclass(frozen=True, slots=True)
class Kind:
    """``tag``: what the node must have besides being able to play the role; "" for nothing."""

    role: str
    tag: str = ""

    def fits(self, node: Node, demand: Demand) -> bool:
        """Whether a node is of this kind, for a run."""
        return _plays(node, self.role) and not self.lacking(node, demand)

    def lacking(self, node: Node, demand: Demand) -> tuple[str, ...]:
        """Components of the tag that a node has not."""
        return demand.lacks(node, self.tag) if self.tag else ()


def kinds_of(demand: Demand) -> list[Kind]:
    """What a run needs one of each of."""
    needs = dict.fromkeys(demand.needs.get(env, "") for env in demand.envs) or {"": None}
    has_slots = demand.version_slots > 0
    tags = dict.fromkeys(needed_tag(tag, has_classes=demand.has_classes, has_slots=has_slots) for tag in demand.tags)
    return [
        Kind(MANAGER),
        *(Kind(RUNNER, need) for need in needs),
        Kind(TRAIN),
        *(Kind(ROLLOUT, "" if tag == ROLLOUT else tag) for tag in tags),
    ]


def wait_words(kind: Kind, demand: Demand, nodes: Sequence[Node], elsewhere: Iterable[str]) -> str:
    """What a run waits for. ``nodes``: the whole fleet; ``elsewhere``: other runs that have such nodes."""
    runs = sorted(elsewhere)
    if not kind.tag:
        words = _TO_SAY[kind.role] + (f" free: run {', '.join(runs)} has them" if runs else "")
    else:
        who = "agent-runner" if kind.role == RUNNER else "node"
        words = f"tag {kind.tag}: no {who} " + (f"that has it is free: run {', '.join(runs)} has them" if runs else "has it")
    return words if runs else "; ".join((words, *_hints(kind, demand, nodes)))


def _hints(kind: Kind, demand: Demand, nodes: Sequence[Node]) -> list[str]:
    """Who could be it, and what a person would type."""
    drained = [node for node in nodes if node.is_drained and kind.fits(node, demand)]
    near = [node for node in nodes if not kind.fits(node, demand) and not _out_of_reach(node, kind, demand)]
    if near:
        fewest = min(len(_to_give(node, kind, demand)) for node in near)
        near = [node for node in near if len(_to_give(node, kind, demand)) == fewest]
    said = [f"node {node.name} is drained (seamlessflow drain --undo {node.name})" for node in drained]
    return _few([*said, *(_near_words(node, kind, demand) for node in near)])


def _near_words(node: Node, kind: Kind, demand: Demand) -> str:
    lacks = _to_give(node, kind, demand)
    has = [part for part in kind.tag.split("+") if part and part not in lacks]
    having = f"has {' and '.join(has)} and lacks" if has else "lacks"
    return f"node {node.name} {having} {' and '.join(lacks)} (seamlessflow tag {node.name} {' '.join(lacks)})"


def _to_give(node: Node, kind: Kind, demand: Demand) -> list[str]:
    """Tags that would make a node one of this kind, roles that were taken away from it first."""
    role = [kind.role] if kind.role in node.taken_away and not node.has(kind.role) else []
    return list(dict.fromkeys([*role, *kind.lacking(node, demand)]))


def _out_of_reach(node: Node, kind: Kind, demand: Demand) -> bool:
    """Whether tags alone cannot make a node one of this kind."""
    could_play = _plays(node, kind.role) or kind.role in node.taken_away
    return not could_play or any(part in ROLES and part not in node.taken_away for part in kind.lacking(node, demand))


def _plays(node: Node, role: str) -> bool:
    if role in (ROLLOUT, TRAIN):
        return node.has(role)
    return role in node.processes and node.serves_as(Service(role))


def _few(hints: list[str]) -> list[str]:
    rest = len(hints) - MOST_NAMED
    return hints if rest <= 0 else [*hints[:MOST_NAMED], f"and {rest} more like these"]
