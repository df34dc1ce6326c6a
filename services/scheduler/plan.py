"""From nodes and demands to the leases that should stand: allocation, then each run's policy, then what serves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from seamlessflow.contracts import Lease, Role, Service

from .allocation import allocate
from .fleet import HeldLease, split_evenly
from .policy import POLICIES, Assignment, Demand, Node
from .policy.base import ROLLOUT
from .shards import share


@dataclass(frozen=True, slots=True)
class Plan:
    """``changes``: assignments that differ from the lease that stands. ``waits``: each run's missing parts, in words."""

    assignments: tuple[Assignment, ...]
    changes: tuple[Assignment, ...]
    waits: Mapping[str, tuple[str, ...]]


def next_plan(nodes: Sequence[Node], leases: Mapping[str, HeldLease], demands: Sequence[Demand], now: float) -> Plan:
    """What every node is to do now. ``leases``: all that stand, those of nodes that are gone included."""
    allocation = allocate(nodes, demands)
    assignments: list[Assignment] = []
    for demand in demands:
        mine = [node for node in nodes if allocation.run_of[node.name] == demand.run]
        assignments += _with_buckets([node for node in mine if node.is_device], demand, now)
        assignments += _serving([node for node in mine if not node.is_device], nodes, demand, now)
    busy = {each.node for each in assignments}
    for name, held in leases.items():
        if name not in busy and held.lease.run is not None:
            known = any(node.name == name for node in nodes)
            reason = f"run {held.lease.run} is over" if known else "the node is gone"
            assignments.append(Assignment(name, None, Role.IDLE, reason, hand_back=True))
    changes = [each for each in assignments if differs(each, leases[each.node].lease if each.node in leases else None)]
    return Plan(tuple(assignments), tuple(changes), allocation.lacks)


def differs(assignment: Assignment, lease: Lease | None) -> bool:
    """Whether a new lease is due. Reason and hand_back alone are not worth an epoch: they count at a change of roles."""
    if lease is None:
        return assignment.run is not None
    ours = (assignment.run, assignment.role, assignment.tags, assignment.buckets, assignment.trainer)
    return ours != (lease.run, lease.role, lease.tags, lease.buckets, lease.trainer)


def _with_buckets(devices: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """What the policy says, and which affinity buckets each node owns.

    A node that is lent to training keeps its own and finds its episodes when it comes back; one that never rolls out owns
    none. With fewer buckets than nodes all own all: a node that owned nothing would get only what others have no room for.
    """
    said = POLICIES[demand.policy](devices, demand, now)
    never = {assignment.node for assignment in said if assignment.never_rolls_out}
    held = {node.name: _buckets_of(node, demand) for node in devices if node.has(ROLLOUT) and node.name not in never}
    if demand.num_buckets < len(held):
        owned = dict.fromkeys(held, tuple(range(demand.num_buckets)))
    else:
        owned = split_evenly(demand.num_buckets, held)
    return [replace(assignment, buckets=owned.get(assignment.node, ())) for assignment in said]


def _serving(nodes: Sequence[Node], everyone: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """Agent-runners take all environments; managers share the shards."""
    managers = [node for node in nodes if node.serves_as(Service.TRAJECTORY_MANAGER)]
    shards = share(managers, everyone, demand, now)
    runners = [node for node in nodes if node.serves_as(Service.AGENT_RUNNER) and node not in managers]
    return [
        *(_serve(node, demand, tuple(map(str, shards[node.name])), _why(shards[node.name])) for node in managers),
        *(_serve(node, demand, demand.envs, "it runs the agents") for node in runners),
    ]


def _why(shards: Sequence[int]) -> str:
    return "it keeps these shards' trees" if shards else "other managers keep the trees, or are about to let go of some"


def _serve(node: Node, demand: Demand, tags: tuple[str, ...], reason: str) -> Assignment:
    return Assignment(node.name, demand.run, Role.SERVE, reason, tags)


def _buckets_of(node: Node, demand: Demand) -> tuple[int, ...]:
    return node.lease.buckets if node.lease is not None and node.lease.run == demand.run else ()
