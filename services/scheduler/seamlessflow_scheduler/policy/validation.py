"""One's own policy is held to what every policy promises; where it does not keep it, the fleet stays as it is. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from seamlessflow.contracts import Role

from .base import ROLLOUT, TRAIN, Assignment, Demand, Node, Policy, rollout


def given_out(policy: Policy, fleet: Sequence[Node], demand: Demand, now: float) -> tuple[list[Assignment], str | None]:
    """What a policy says, and what is wrong with it; then everybody goes on with what stands."""
    try:
        said = list(policy(fleet, demand, now))
        wrong = broken_promise(said, fleet, demand)
    except Exception as raised:  # not our code: whatever it does must not end the scheduler
        said, wrong = [], f"{type(raised).__name__}: {raised}"
    if wrong is None:
        return said, None
    words = f"policy {demand.policy} failed, so roles stay as they are: {wrong}"
    names = {node.name for node in fleet}
    return [_as_before(node, demand, words, names) for node in fleet], words


def broken_promise(said: Sequence[Assignment], fleet: Sequence[Node], demand: Demand) -> str | None:
    """What of ``base`` these assignments break, in words; None: nothing."""
    nodes = {node.name: node for node in fleet}
    counted = Counter(each.node for each in said)
    if counted != Counter(list(nodes)):
        odd = sorted(set(counted) ^ set(nodes)) or [name for name, count in counted.items() if count > 1]
        return f"expected one assignment for each node, got none, several or an unknown node for {', '.join(odd)}"
    leads = [each for each in said if each.trainer]
    if len(leads) > 1:
        return f"one node has the run's trainer, got {', '.join(each.node for each in leads)}"
    for each in said:
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


def _as_before(node: Node, demand: Demand, words: str, names: Collection[str]) -> Assignment:
    """``names``: of the nodes that the run has now. Who leads others that are gone leads them no more."""
    lease = node.lease
    if lease is None or lease.run != demand.run:
        return rollout(node, demand, words)
    stands = as_it_stands(node, demand, words)
    gang = tuple(name for name in lease.gang if name in names) if lease.trainer else lease.gang
    return replace(stands, gang=gang if len(gang) > 1 else ())


def as_it_stands(node: Node, demand: Demand, words: str) -> Assignment:
    """What a node does now; it must have a lease of the run."""
    lease = node.lease
    assert lease is not None
    return Assignment(
        node.name, demand.run, lease.role, words, lease.tags, lease.trainer, lease.gang, lease.hand_back, lease.lent
    )
