"""From nodes and demands to the leases that should stand: allocation, then each run's policy, then what serves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from seamlessflow.contracts import Lease, Role, Service
from seamlessflow.contracts.tags import is_long
from seamlessflow_scheduler.fleet_state import HeldLease
from seamlessflow_scheduler.policy import Assignment, Demand, Node, policy_of
from seamlessflow_scheduler.policy.base import ROLLOUT, TRAIN
from seamlessflow_scheduler.policy.gang import stays_for_step
from seamlessflow_scheduler.policy.validation import as_it_stands, given_out

from .affinity import owners
from .pinned_versions import with_versions
from .run_allocation import allocate
from .shards import share


@dataclass(frozen=True, slots=True)
class Plan:
    """``changes``: assignments that differ from the lease that stands. ``waits``: each run's missing parts, in words."""

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
) -> Plan:
    """What every node is to do now. ``leases``: all that stand, those of nodes that are gone included. ``held``: runs that wait
    for a person, and get no node."""
    allocation = allocate(nodes, demands)
    waits = dict(allocation.lacks)
    assignments: list[Assignment] = []
    for demand in demands:
        mine = [node for node in nodes if allocation.run_of.get(node.name) == demand.run]
        said, wrong = _with_buckets([node for node in mine if node.is_device], demand, now)
        assignments += with_versions(said, mine, demand, now) if demand.version_slots else said
        if wrong is not None:
            waits[demand.run] = (*waits[demand.run], wrong)
        assignments += _serving([node for node in mine if not node.is_device], nodes, demand, now)
    assignments += _until_step_taken(nodes, allocation.run_of, demands)
    busy, by_name = {each.node for each in assignments}, {node.name: node for node in nodes}
    for name, stands in leases.items():
        if name not in busy and stands.lease.run is not None:
            reason = _why_nothing(by_name.get(name), stands.lease.run, demands, held)
            assignments.append(Assignment(name, None, Role.IDLE, reason, hand_back=True))
    before = {name: each.lease for name, each in leases.items()}
    changes = [each for each in assignments if differs(each, before.get(each.node))]
    # Roles before buckets alone, as a device that waits costs more; and who is no longer the run's trainer learns it before its
    # successor does.
    changes.sort(key=lambda each: (not has_other_role(each, before.get(each.node)), each.trainer))
    return Plan(tuple(assignments), tuple(changes), waits)


def _until_step_taken(nodes: Sequence[Node], run_of: Mapping[str, str | None], demands: Sequence[Demand]) -> list[Assignment]:
    """Members of a gang that were drained go on while a step with them is in progress; what they froze, others have at once."""
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


def _why_nothing(node: Node | None, run: str, demands: Sequence[Demand], held: frozenset[str]) -> str:
    """Why a node that has a lease of a run gets nothing."""
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
    """Whether more than the affinity buckets and the kept versions of a lease change."""
    return lease is None or differs(replace(assignment, buckets=lease.buckets, keeps=lease.keeps, let_go=lease.let_go), lease)


def differs(assignment: Assignment, lease: Lease | None) -> bool:
    """Whether a new lease is due. Reason and hand_back alone are not worth an epoch: they count at a change of roles.

    But who froze generations to go on with them, and cannot any more, is told to hand them back.
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
    """What the policy says, which affinity buckets each node owns, and what is wrong with the policy.

    Only who rolls out now owns some, and who comes back gets those again that it had (``affinity``). With fewer buckets than
    nodes all that roll out own all: a node that owned nothing would get only what others have no room for. Of generations
    that should be long a node that is lent owns none, as long as there is another: it gets them last of all.
    """
    said, wrong = given_out(policy_of(demand.policy), devices, demand, now)
    nodes = {node.name: node for node in devices}
    said = [_for_good(_kept_for_step(each, nodes[each.node], devices, demand), nodes[each.node], demand) for each in said]
    never = {assignment.node for assignment in said if assignment.never_rolls_out}
    rolling = {assignment.node for assignment in said if assignment.role is Role.ROLLOUT}
    leaving = {assignment.node for assignment in said if _will_leave(assignment)}
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
    return [_owning(each, owned.get(each.node, ())) for each in said], wrong


def _owning(said: Assignment, buckets: tuple[int, ...]) -> Assignment:
    """The same with its buckets, and lent where it is. Built outright: ``replace`` takes four times as long, for each node."""
    lent = said.role is Role.ROLLOUT and (said.lent or said.trainer)
    if (buckets, lent) == (said.buckets, said.lent):
        return said
    return Assignment(
        node=said.node,
        run=said.run,
        role=said.role,
        reason=said.reason,
        tags=said.tags,
        trainer=said.trainer,
        gang=said.gang,
        hand_back=said.hand_back,
        lent=lent,
        never_rolls_out=said.never_rolls_out,
        buckets=buckets,
    )


def _will_leave(assignment: Assignment) -> bool:
    """Whether a node takes steps, so that what should take long is better off elsewhere."""
    return assignment.trainer or assignment.lent or assignment.role is Role.TRAIN


def _kept_for_step(assignment: Assignment, node: Node, devices: Sequence[Node], demand: Demand) -> Assignment:
    """A member that ``train`` was taken from by hand is none for any policy; a step that began with it ends with it."""
    if node.has(TRAIN) or assignment.role is Role.TRAIN or not stays_for_step(node, devices, demand):
        return assignment
    return as_it_stands(node, demand, "train was taken away by hand: it leaves the gang when the step is taken")


def _for_good(assignment: Assignment, node: Node, demand: Demand) -> Assignment:
    """Nothing is frozen on a node that rolls out no more: whatever its policy said, its generations go to others."""
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
        *(_serve(node, demand, tuple(map(str, shards[node.name])), _why(shards[node.name])) for node in managers),
        *(_runs_agents(node, demand) for node in runners),
    ]


def _why(shards: Sequence[int]) -> str:
    return "it keeps these shards' trees" if shards else "other managers keep the trees, or are about to let go of some"


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
