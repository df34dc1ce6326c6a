"""Which run a node serves. Pure.

A node serves one run at a time and stays with it. Runs are looked at in the order they were requested: one that lacks
something takes free nodes, or spare nodes of other runs (those without which the other still has all it needs), and takes
them only when they make it complete, unless it is the oldest: so two runs never wait for each other. What is still free
goes to the run with the fewest nodes of that kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seamlessflow.contracts import Role, Service

from .policy.base import ROLLOUT, TRAIN, Demand, Node
from .policy.disaggregated import NEEDS_TWO
from .wants import Kind, kinds_of, wait_words


@dataclass(frozen=True, slots=True)
class Allocation:
    """``run_of``: every node to its run or None. ``lacks``: every run to what it waits for, in words."""

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
    lacks = {d.run: _words(nodes, everyone, run_of, d) for d in demands}
    return Allocation({**dict.fromkeys((node.name for node in everyone), None), **run_of}, lacks)


def _share_out(nodes: Sequence[Node], run_of: dict[str, str | None], demands: Sequence[Demand]) -> None:
    """Each free node to the complete run with the fewest nodes of its kind; while none is complete, to the oldest."""
    free = [node for node in nodes if run_of[node.name] is None]
    if not free or not demands:
        return
    runs = [d.run for d in demands if not _lacking(_of(nodes, run_of, d.run), d)] or [demands[0].run]
    counts = Counter((run_of[node.name], _kind(node)) for node in nodes)
    for node in free:
        if (kind := _kind(node)) is not None:
            fewest = min(runs, key=lambda run: counts[run, kind])
            run_of[node.name] = fewest
            counts[fewest, kind] += 1


def _picks(nodes: Sequence[Node], run_of: dict[str, str | None], demands: Sequence[Demand], demand: Demand) -> list[Node]:
    """Nodes that would give a run what it lacks, as far as there are any."""
    picks: list[Node] = []
    taken = dict(run_of)
    for _ in range(len(kinds_of(demand))):
        mine = _of(nodes, taken, demand.run)
        lacking = _lacking(mine, demand)
        fitting = [n for kind in lacking for n in nodes if kind.fits(n, demand) and _may_go(n, nodes, taken, demands, demand)]
        if not fitting:
            return picks
        best = min(fitting, key=lambda n: (taken[n.name] is not None, -sum(kind.fits(n, demand) for kind in lacking), n.name))
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


def _lacking(mine: Iterable[Node], demand: Demand) -> list[Kind]:
    """Kinds of which the run has no node."""
    mine = list(mine)
    lacking = [kind for kind in kinds_of(demand) if not any(kind.fits(node, demand) for node in mine)]
    trainers = [node for node in mine if node.has(TRAIN)]
    if demand.policy == "disaggregated" and not lacking and _is_alone(trainers, mine):
        lacking.append(Kind(ROLLOUT))
    return lacking


def _is_alone(trainers: list[Node], mine: list[Node]) -> bool:
    """Whether no split into one trainer and another that rolls out is possible."""
    return not any(other is not trainer and other.has(ROLLOUT) for trainer in trainers for other in mine)


def _kind(node: Node) -> str | None:
    """What a node is counted as when runs share what is left."""
    return (
        "device"
        if node.is_device
        else next((s.value for s in (Service.TRAJECTORY_MANAGER, Service.AGENT_RUNNER) if node.serves_as(s)), None)
    )


def _words(nodes: Sequence[Node], everyone: Sequence[Node], run_of: dict[str, str | None], demand: Demand) -> tuple[str, ...]:
    """What a run waits for, saying where such nodes are when there are any, and which could be made such."""
    mine = _of(nodes, run_of, demand.run)
    lacking = _lacking(mine, demand)
    split = demand.policy == "disaggregated" and any(n.has(TRAIN) for n in mine) and any(n.has(ROLLOUT) for n in mine)
    words = []
    for kind in lacking:
        others = {run for n in nodes if kind.fits(n, demand) and (run := run_of[n.name]) not in (None, demand.run)}
        elsewhere = [run for run in others if run is not None]
        if split and not kind.tag and kind.role in (TRAIN, ROLLOUT):
            words.append(f"{NEEDS_TWO} free: run {', '.join(sorted(elsewhere))} has them" if elsewhere else NEEDS_TWO)
        else:
            words.append(wait_words(kind, demand, everyone, elsewhere))
    return tuple(words)
