"""Plans the whole fleet: from nodes and demands to assignments: allocation, each run's policy, serving nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from seamlessflow.contracts import Lease, Role, Service
from seamlessflow.contracts.tags import is_long
from seamlessflow_scheduler.fleet_state import HeldLease
from seamlessflow_scheduler.policy import Assignment, Demand, Node, policy_of
from seamlessflow_scheduler.policy.base import ROLLOUT, TRAIN
from seamlessflow_scheduler.policy.gang import stays_for_step
from seamlessflow_scheduler.policy.validation import as_it_stands, checked_assignments

from .affinity import owners
from .pinned_versions import with_versions
from .run_allocation import allocate
from .shards import share


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """``changes``: assignments that differ from the node's lease. ``waits``: by run, what it waits for, as text."""

    assignments: tuple[Assignment, ...]
    changes: tuple[Assignment, ...]
    waits: Mapping[str, tuple[str, ...]]


def next_plan(
    nodes: Sequence[Node],
    leases: Mapping[str, HeldLease],
    demands: Sequence[Demand],
    now: float,
    *,
    held: frozenset[str] = frozenset(),
) -> FleetPlan:
    """The assignments of all nodes now. ``leases``: all leases, those of nodes that are gone included. ``held``: runs that wait
    for a person, and get no node."""
    allocation = allocate(nodes, demands)
    waits = dict(allocation.lacks)
    assignments: list[Assignment] = []
    for demand in demands:
        mine = [node for node in nodes if allocation.run_of.get(node.name) == demand.run]
        assigned, wrong = _with_buckets([node for node in mine if node.is_device], demand, now)
        assignments += with_versions(assigned, mine, demand, now) if demand.version_slots else assigned
        if wrong is not None:
            waits[demand.run] = (*waits[demand.run], wrong)
        assignments += _serving([node for node in mine if not node.is_device], nodes, demand, now)
    assignments += _until_step_taken(nodes, allocation.run_of, demands)
    busy, by_name = {each.node for each in assignments}, {node.name: node for node in nodes}
    for name, stands in leases.items():
        if name not in busy and stands.lease.run is not None:
            reason = _idle_reason(by_name.get(name), stands.lease.run, demands, held)
            assignments.append(Assignment(name, None, Role.IDLE, reason, hand_back=True))
    before = {name: each.lease for name, each in leases.items()}
    changes = [each for each in assignments if differs(each, before.get(each.node))]
    # Roles before buckets alone, as a device that waits costs more; and a former trainer of the run gets its lease before its
    # successor.
    changes.sort(key=lambda each: (not has_other_role(each, before.get(each.node)), each.trainer))
    return FleetPlan(tuple(assignments), tuple(changes), waits)


def _until_step_taken(nodes: Sequence[Node], run_of: Mapping[str, str | None], demands: Sequence[Demand]) -> list[Assignment]:
    """Drained members of a gang stay until a step with them is taken; other nodes get their frozen generations at once."""
    stay = []
    drained = [node for node in nodes if node.is_drained and node.lease is not None and node.lease.role is Role.TRAIN]
    for demand in demands if drained else ():
        mine = [node for node in nodes if run_of.get(node.name) == demand.run]
        for node in drained:
            if node.lease is not None and stays_for_step(node, mine, demand):
                stands = as_it_stands(node, demand, "drained by hand: it leaves when the step is taken")
                stands = replace(stands, keeps=node.lease.keeps, let_go=node.lease.let_go)
                stay.append(replace(stands, buckets=node.lease.buckets, hand_back=True, never_rolls_out=True))
    return stay


def _idle_reason(node: Node | None, run: str, demands: Sequence[Demand], held: frozenset[str]) -> str:
    """Why a node that has a lease of a run gets no assignment."""
    if node is None:
        return "the node is gone"
    if node.is_drained:
        return "drained by hand"
    if run in held:
        return f"run {run} is held: it waits for a person"
    if all(demand.run != run for demand in demands):
        return f"run {run} is over"
    return f"nothing is left that it may do; taken away by hand: {', '.join(sorted(node.taken_away)) or 'nothing'}"


def has_other_role(assignment: Assignment, lease: Lease | None) -> bool:
    """Whether more than the affinity buckets and the pinned version of a lease change."""
    return lease is None or differs(replace(assignment, buckets=lease.buckets, keeps=lease.keeps, let_go=lease.let_go), lease)


def differs(assignment: Assignment, lease: Lease | None) -> bool:
    """Whether a new lease is due. Reason and hand_back alone are not worth an epoch: they count at a change of roles.

    But a node that froze generations and can no longer go on with them is told to hand them back.
    """
    if lease is None:
        return assignment.run is not None
    if assignment.never_rolls_out and assignment.hand_back and not lease.hand_back and lease.run is not None:
        return True
    ours = (
        assignment.run,
        assignment.role,
        assignment.tags,
        assignment.buckets,
        assignment.trainer,
        assignment.gang,
        assignment.lent,
        assignment.keeps,
        assignment.let_go,
    )
    stands = (lease.run, lease.role, lease.tags, lease.buckets, lease.trainer, lease.gang, lease.lent)
    return ours != (*stands, lease.keeps, lease.let_go)


def _with_buckets(devices: Sequence[Node], demand: Demand, now: float) -> tuple[list[Assignment], str | None]:
    """The policy's assignments with each node's affinity buckets, and the failure of the policy, if any.

    Only nodes that roll out now own buckets, and a node that comes back gets its former ones (``affinity``). With fewer buckets
    than nodes, all that roll out own all: a node without any would get only the overflow of others. A lent node owns no bucket
    of long generations as long as another node does: it gets them last.
    """
    assigned, wrong = checked_assignments(policy_of(demand.policy), devices, demand, now)
    nodes = {node.name: node for node in devices}
    assigned = [
        _for_good(_kept_for_step(each, nodes[each.node], devices, demand), nodes[each.node], demand) for each in assigned
    ]
    never = {assignment.node for assignment in assigned if assignment.never_rolls_out}
    rolling = {assignment.node for assignment in assigned if assignment.role is Role.ROLLOUT}
    leaving = {assignment.node for assignment in assigned if _will_leave(assignment)}
    able = [node for node in devices if node.has(ROLLOUT) and node.name not in never]
    owned: dict[str, tuple[int, ...]] = {}
    for place, tag in enumerate(demand.tags):
        first, count = place * demand.num_buckets, demand.num_buckets
        serving = sorted(node.name for node in able if not demand.lacks(node, tag))
        if is_long(tag, has_classes=demand.has_classes):
            serving = [name for name in serving if name not in leaving] or serving
        there = tuple(name for name in serving if name in rolling)
        if count < len(serving):
            split: Mapping[str, Sequence[int]] = dict.fromkeys(there, range(count))
        else:
            split = owners(count, tuple(serving), there)
        for name, buckets in split.items():
            owned[name] = owned.get(name, ()) + tuple(first + bucket for bucket in buckets)
    return [_owning(each, owned.get(each.node, ())) for each in assigned], wrong


def _owning(assignment: Assignment, buckets: tuple[int, ...]) -> Assignment:
    """The same with its buckets, and lent where it is. Built outright: ``replace`` takes four times as long, for each node."""
    lent = assignment.role is Role.ROLLOUT and (assignment.lent or assignment.trainer)
    if (buckets, lent) == (assignment.buckets, assignment.lent):
        return assignment
    return Assignment(
        node=assignment.node,
        run=assignment.run,
        role=assignment.role,
        reason=assignment.reason,
        tags=assignment.tags,
        trainer=assignment.trainer,
        gang=assignment.gang,
        hand_back=assignment.hand_back,
        lent=lent,
        never_rolls_out=assignment.never_rolls_out,
        buckets=buckets,
    )


def _will_leave(assignment: Assignment) -> bool:
    """Whether a node takes steps, so that long generations are better off elsewhere."""
    return assignment.trainer or assignment.lent or assignment.role is Role.TRAIN


def _kept_for_step(assignment: Assignment, node: Node, devices: Sequence[Node], demand: Demand) -> Assignment:
    """A member whose ``train`` was taken away by hand is no member to policies, but stays until its step ends."""
    if node.has(TRAIN) or assignment.role is Role.TRAIN or not stays_for_step(node, devices, demand):
        return assignment
    return as_it_stands(node, demand, "train was taken away by hand: it leaves the gang when the step is taken")


def _for_good(assignment: Assignment, node: Node, demand: Demand) -> Assignment:
    """A node that never rolls out again freezes nothing: whatever its policy answered, its generations go to others."""
    if assignment.role is Role.ROLLOUT or Service.ROLLOUT_WORKER not in node.processes:
        return assignment
    never = assignment.never_rolls_out or not node.has(ROLLOUT) or not demand.served_by(node)
    return replace(assignment, never_rolls_out=never, hand_back=assignment.hand_back or never)


def _serving(nodes: Sequence[Node], everyone: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """Agent-runners take all environments; managers share the shards."""
    managers = [node for node in nodes if node.serves_as(Service.TRAJECTORY_MANAGER)]
    shards = share(managers, everyone, demand, now)
    runners = [node for node in nodes if node.serves_as(Service.AGENT_RUNNER) and node not in managers]
    return [
        *(_serve(node, demand, tuple(map(str, shards[node.name])), _serving_reason(shards[node.name])) for node in managers),
        *(_runs_agents(node, demand) for node in runners),
    ]


def _serving_reason(shards: Sequence[int]) -> str:
    return "it keeps these shards' trees" if shards else "other managers keep the trees, or are about to release some"


def _runs_agents(node: Node, demand: Demand) -> Assignment:
    envs = demand.envs_of(node)
    left = ", ".join(env for env in demand.envs if env not in envs)
    if demand.envs and not envs:
        return Assignment(node.name, demand.run, Role.IDLE, f"it lacks the tags that the agents of {left} need")
    return _serve(
        node, demand, envs, "it runs the agents" + (f", but those of {left}, which need tags it has not" if left else "")
    )


def _serve(node: Node, demand: Demand, tags: tuple[str, ...], reason: str) -> Assignment:
    return Assignment(node.name, demand.run, Role.SERVE, reason, tags)
