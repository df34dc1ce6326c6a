"""Checks the assignments of a policy against the rules of ``base``; if they break one, the fleet stays as it is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from seamlessflow.contracts import Role

from .base import ROLLOUT, TRAIN, Assignment, Demand, Node, Policy, rollout


def checked_assignments(
    policy: Policy, fleet: Sequence[Node], demand: Demand, now: float
) -> tuple[list[Assignment], str | None]:
    """The assignments of a policy, and its failure, if any; then the nodes keep their leases."""
    try:
        assigned = list(policy(fleet, demand, now))
        wrong = broken_promise(assigned, fleet, demand)
    except Exception as raised:  # code of a user: no error of it may end the scheduler
        assigned, wrong = [], f"{type(raised).__name__}: {raised}"
    if wrong is None:
        return assigned, None
    reason = f"policy {demand.policy} failed, so roles stay as they are: {wrong}"
    names = {node.name for node in fleet}
    return [_as_before(node, demand, reason, names) for node in fleet], reason


def broken_promise(assigned: Sequence[Assignment], fleet: Sequence[Node], demand: Demand) -> str | None:
    """The rule of ``base`` that these assignments break, as text; None: none."""
    nodes = {node.name: node for node in fleet}
    counted = Counter(each.node for each in assigned)
    if counted != Counter(list(nodes)):
        odd = sorted(set(counted) ^ set(nodes)) or [name for name, count in counted.items() if count > 1]
        return f"expected one assignment for each node, got none, several or an unknown node for {', '.join(odd)}"
    leads = [each for each in assigned if each.trainer]
    if len(leads) > 1:
        return f"one node has the run's trainer, got {', '.join(each.node for each in leads)}"
    for each in assigned:
        node = nodes[each.node]
        if each.run != demand.run or not each.reason:
            return f"{each.node}: expected run {demand.run} and a reason"
        if each.role not in (Role.ROLLOUT, Role.TRAIN, Role.IDLE):
            return f"{each.node}: a device cannot have the role {each.role}"
        if (each.trainer or each.role is Role.TRAIN) and not node.has(TRAIN):
            return f"{each.node} cannot train"
        if each.role is Role.ROLLOUT and not node.has(ROLLOUT):
            return f"{each.node} cannot roll out"
        if each.gang and not nodes.keys() >= set(each.gang):
            return f"the gang of {each.node} names {', '.join(sorted(set(each.gang) - nodes.keys()))}, which is not there"
        if len(each.gang) > demand.train_nodes and each.trainer:
            return f"a gang has at most fleet.train_nodes = {demand.train_nodes} nodes, got {len(each.gang)}"
    return None


def _as_before(node: Node, demand: Demand, reason: str, names: Collection[str]) -> Assignment:
    """``names``: of the nodes that the run has now. A lead drops members that are gone."""
    lease = node.lease
    if lease is None or lease.run != demand.run:
        return rollout(node, demand, reason)
    stands = as_it_stands(node, demand, reason)
    gang = tuple(name for name in lease.gang if name in names) if lease.trainer else lease.gang
    return replace(stands, gang=gang if len(gang) > 1 else ())


def as_it_stands(node: Node, demand: Demand, reason: str) -> Assignment:
    """The assignment that repeats a node's lease, which must be of the run."""
    lease = node.lease
    assert lease is not None
    return Assignment(
        node.name, demand.run, lease.role, reason, lease.tags, lease.trainer, lease.gang, lease.hand_back, lease.lent
    )
