"""Allocates nodes to runs, and explains which nodes a run still needs. Pure.

A node serves one run at a time and stays with it. Runs are served in the order of their requests: one that lacks
something takes free nodes, or spare nodes of other runs (those without which the other still has all it needs), and takes
them only when they make it complete, unless it is the oldest: so two runs never wait for each other. What is still free
goes to the run with the fewest nodes of that requirement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seamlessflow.contracts import Role, Service
from seamlessflow.contracts.tags import ROLES, needed_tag
from seamlessflow_scheduler.policy.base import ROLLOUT, TRAIN, Demand, Node
from seamlessflow_scheduler.policy.disaggregated import NEEDS_TWO

MANAGER, RUNNER = Service.TRAJECTORY_MANAGER.value, Service.AGENT_RUNNER.value
_MISSING_TEXT = {
    MANAGER: "no trajectory-manager",
    RUNNER: "no agent-runner",
    TRAIN: "no node with capability train",
    ROLLOUT: "no node with capability rollout",
}
MOST_NAMED = 3
"""Nodes that a hint names; the others are counted."""


@dataclass(frozen=True, slots=True)
class NodeRequirement:
    """A kind of node of which a run needs at least one: a role, and the tag of the work that it samples or runs agents for.

    A run whose agents need ``h800+rollout`` lacks a node as long as none has both. tag: "" where the role is enough.
    """

    role: str
    tag: str = ""

    def fits(self, node: Node, demand: Demand) -> bool:
        """Whether a node meets the requirement of a run."""
        return _plays(node, self.role) and not self.lacking(node, demand)

    def lacking(self, node: Node, demand: Demand) -> tuple[str, ...]:
        """Components of the tag that a node lacks."""
        return demand.lacks(node, self.tag) if self.tag else ()


def node_requirements(demand: Demand) -> list[NodeRequirement]:
    """The requirements of a run, each to be met by one node at least."""
    needs = dict.fromkeys(demand.needs.get(env, "") for env in demand.envs) or {"": None}
    has_slots = demand.version_slots > 0
    tags = dict.fromkeys(needed_tag(tag, has_classes=demand.has_classes, has_slots=has_slots) for tag in demand.tags)
    return [
        NodeRequirement(MANAGER),
        *(NodeRequirement(RUNNER, need) for need in needs),
        NodeRequirement(TRAIN),
        *(NodeRequirement(ROLLOUT, "" if tag == ROLLOUT else tag) for tag in tags),
    ]


def missing_text(requirement: NodeRequirement, demand: Demand, nodes: Sequence[Node], elsewhere: Iterable[str]) -> str:
    """Text of an unmet requirement. ``nodes``: the whole fleet; ``elsewhere``: other runs that have such nodes."""
    runs = sorted(elsewhere)
    if not requirement.tag:
        text = _MISSING_TEXT[requirement.role] + (f" free: run {', '.join(runs)} has them" if runs else "")
    else:
        noun = "agent-runner" if requirement.role == RUNNER else "node"
        text = f"tag {requirement.tag}: no {noun} " + (
            f"that has it is free: run {', '.join(runs)} has them" if runs else "has it"
        )
    return text if runs else "; ".join((text, *_hints(requirement, demand, nodes)))


def _hints(requirement: NodeRequirement, demand: Demand, nodes: Sequence[Node]) -> list[str]:
    """Nodes that could meet the requirement, each with the command that a person would type."""
    drained = [node for node in nodes if node.is_drained and requirement.fits(node, demand)]
    near = [node for node in nodes if not requirement.fits(node, demand) and not _out_of_reach(node, requirement, demand)]
    if near:
        fewest = min(len(_to_give(node, requirement, demand)) for node in near)
        near = [node for node in near if len(_to_give(node, requirement, demand)) == fewest]
    hints = [f"node {node.name} is drained (seamlessflow drain --undo {node.name})" for node in drained]
    return _few([*hints, *(_near_text(node, requirement, demand) for node in near)])


def _near_text(node: Node, requirement: NodeRequirement, demand: Demand) -> str:
    lacks = _to_give(node, requirement, demand)
    has = [part for part in requirement.tag.split("+") if part and part not in lacks]
    having = f"has {' and '.join(has)} and lacks" if has else "lacks"
    return f"node {node.name} {having} {' and '.join(lacks)} (seamlessflow tag {node.name} {' '.join(lacks)})"


def _to_give(node: Node, requirement: NodeRequirement, demand: Demand) -> list[str]:
    """Tags with which a node would meet the requirement; roles that were taken away from it come first."""
    role = [requirement.role] if requirement.role in node.taken_away and not node.has(requirement.role) else []
    return list(dict.fromkeys([*role, *requirement.lacking(node, demand)]))


def _out_of_reach(node: Node, requirement: NodeRequirement, demand: Demand) -> bool:
    """Whether tags alone cannot make a node meet the requirement."""
    could_play = _plays(node, requirement.role) or requirement.role in node.taken_away
    return not could_play or any(part in ROLES and part not in node.taken_away for part in requirement.lacking(node, demand))


def _plays(node: Node, role: str) -> bool:
    if role in (ROLLOUT, TRAIN):
        return node.has(role)
    return role in node.processes and node.serves_as(Service(role))


def _few(hints: list[str]) -> list[str]:
    rest = len(hints) - MOST_NAMED
    return hints if rest <= 0 else [*hints[:MOST_NAMED], f"and {rest} more like these"]


@dataclass(frozen=True, slots=True)
class Allocation:
    """``run_of``: every node to its run or None. ``lacks``: by run, what it waits for, as text."""

    run_of: dict[str, str | None]
    lacks: dict[str, tuple[str, ...]]


def allocate(nodes: Sequence[Node], demands: Sequence[Demand]) -> Allocation:
    """Give every node a run (or None; a drained one never gets any). ``demands``: one per run, oldest first."""
    everyone, nodes = nodes, [node for node in nodes if not node.is_drained]
    active = {demand.run for demand in demands}
    run_of = {node.name: node.lease.run if node.lease is not None and node.lease.run in active else None for node in nodes}
    for place, demand in enumerate(demands):
        picks = _picks(nodes, run_of, demands, demand)
        if place == 0 or not _lacking(_of(nodes, run_of, demand.run) + picks, demand):
            run_of.update({node.name: demand.run for node in picks})
    _share_out(nodes, run_of, demands)
    lacks = {d.run: _missing_texts(nodes, everyone, run_of, d) for d in demands}
    return Allocation({**dict.fromkeys((node.name for node in everyone), None), **run_of}, lacks)


def _share_out(nodes: Sequence[Node], run_of: dict[str, str | None], demands: Sequence[Demand]) -> None:
    """Each free node to the complete run with the fewest nodes of its class; while none is complete, to the oldest."""
    free = [node for node in nodes if run_of[node.name] is None]
    if not free or not demands:
        return
    runs = [d.run for d in demands if not _lacking(_of(nodes, run_of, d.run), d)] or [demands[0].run]
    counts = Counter((run_of[node.name], _node_class(node)) for node in nodes)
    for node in free:
        if (node_class := _node_class(node)) is not None:
            fewest = min(runs, key=lambda run: counts[run, node_class])
            run_of[node.name] = fewest
            counts[fewest, node_class] += 1


def _picks(nodes: Sequence[Node], run_of: dict[str, str | None], demands: Sequence[Demand], demand: Demand) -> list[Node]:
    """Nodes that would meet the open requirements of a run, as far as there are any."""
    picks: list[Node] = []
    taken = dict(run_of)
    for _ in range(len(node_requirements(demand))):
        mine = _of(nodes, taken, demand.run)
        lacking = _lacking(mine, demand)
        fitting = [
            n
            for requirement in lacking
            for n in nodes
            if requirement.fits(n, demand) and _may_go(n, nodes, taken, demands, demand)
        ]
        if not fitting:
            return picks
        best = min(
            fitting,
            key=lambda n: (taken[n.name] is not None, -sum(requirement.fits(n, demand) for requirement in lacking), n.name),
        )
        taken[best.name] = demand.run
        picks.append(best)
    return picks


def _may_go(node: Node, nodes: Sequence[Node], run_of: dict[str, str | None], demands: Sequence[Demand], to: Demand) -> bool:
    """Whether a node is free, or spare where it is. The trainer's node of a run is never spare, nor a member of its gang."""
    owner = run_of[node.name]
    if owner is None:
        return True
    is_training = node.lease is not None and (node.lease.trainer or node.lease.role is Role.TRAIN)
    if owner == to.run or is_training:
        return False
    left = [other for other in _of(nodes, run_of, owner) if other is not node]
    return not _lacking(left, next(demand for demand in demands if demand.run == owner))


def _of(nodes: Sequence[Node], run_of: dict[str, str | None], run: str) -> list[Node]:
    return [node for node in nodes if run_of[node.name] == run]


def _lacking(mine: Iterable[Node], demand: Demand) -> list[NodeRequirement]:
    """Requirements that no node of the run meets."""
    mine = list(mine)
    lacking = [
        requirement for requirement in node_requirements(demand) if not any(requirement.fits(node, demand) for node in mine)
    ]
    trainers = [node for node in mine if node.has(TRAIN)]
    if demand.policy == "disaggregated" and not lacking and _is_alone(trainers, mine):
        lacking.append(NodeRequirement(ROLLOUT))
    return lacking


def _is_alone(trainers: list[Node], mine: list[Node]) -> bool:
    """Whether no split into one trainer and another that rolls out is possible."""
    return not any(other is not trainer and other.has(ROLLOUT) for trainer in trainers for other in mine)


def _node_class(node: Node) -> str | None:
    """The class under which a node is counted when runs share the remaining nodes."""
    return (
        "device"
        if node.is_device
        else next((s.value for s in (Service.TRAJECTORY_MANAGER, Service.AGENT_RUNNER) if node.serves_as(s)), None)
    )


def _missing_texts(
    nodes: Sequence[Node], everyone: Sequence[Node], run_of: dict[str, str | None], demand: Demand
) -> tuple[str, ...]:
    """Texts of what a run waits for: which runs have such nodes, and which nodes could become such."""
    mine = _of(nodes, run_of, demand.run)
    lacking = _lacking(mine, demand)
    split = demand.policy == "disaggregated" and any(n.has(TRAIN) for n in mine) and any(n.has(ROLLOUT) for n in mine)
    texts = []
    for requirement in lacking:
        others = {run for n in nodes if requirement.fits(n, demand) and (run := run_of[n.name]) not in (None, demand.run)}
        elsewhere = [run for run in others if run is not None]
        if split and not requirement.tag and requirement.role in (TRAIN, ROLLOUT):
            texts.append(f"{NEEDS_TWO} free: run {', '.join(sorted(elsewhere))} has them" if elsewhere else NEEDS_TWO)
        else:
            texts.append(missing_text(requirement, demand, everyone, elsewhere))
    return tuple(texts)
