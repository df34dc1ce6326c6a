"""Plans the pinned version of each node: one older weights version for episodes that keep theirs. Pure.

    newest 7, needed 7 6 5      a has 7 5, keeps 5         b has 7 6, keeps 6      c has 7 6, pins nothing
    newest 8, needed 8 7 6 5    a has 8 5, pins nothing    b has 8 6, keeps 6      c has 8 7, keeps 7
    newest 9, needed 9 8 7 6    a has 9 8                  b has 9 6               c has 9 7                  5 is released

Every node takes every newest version, so it has room for one older. Without a pin it keeps the version that was the newest
before; with one it keeps or fetches that version. One node at least has no pin, so that today's newest version has a holder
when the next one comes. Where more versions are needed than there are nodes the oldest are released: their tokens
are the next to be too old to train. A released version remains available until its holder needs the room.

Always true: a version pinned on a node stays there as long as it is needed and there is room for it; the same
state gives the same answer, and once it is followed nothing moves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from seamlessflow.contracts import Lease, Role, Service
from seamlessflow_scheduler.policy import Assignment, Demand, Node
from seamlessflow_scheduler.policy.base import ROLLOUT

STEP_SECONDS = 60.0
"""How long a version waits for its only holder while that takes a step; then others fetch it, or it is released."""


@dataclass(frozen=True, slots=True)
class VersionHolder:
    """A node that rolls out, now or again later. ``has``: versions it can sample under. ``keeps``: its pinned version now."""

    name: str
    has: frozenset[int] = frozenset()
    keeps: int | None = None
    will_leave: bool = False
    """It takes steps in between."""
    is_away: bool = False
    """It takes one now, or waits for one."""


@dataclass(frozen=True, slots=True)
class VersionPlan:
    """``keeps``: by node, the version to pin. ``released``: needed versions that have and get no holder, oldest first."""

    keeps: Mapping[str, int | None]
    released: tuple[int, ...] = ()


def version_plan(needed: Collection[int], keepers: Sequence[VersionHolder], version_slots: int) -> VersionPlan:
    """The version that each node is to pin. ``needed``: versions that live episodes keep.

    Of two versions in one slot the older is released: a holder of one of them would get generations of both.
    """
    there = frozenset[int]().union(*(keeper.has for keeper in keepers))
    if not there:  # no versions are known yet: a worker that starts soon announces its own
        return VersionPlan({keeper.name: keeper.keeps for keeper in keepers})
    newest = max(there)
    older = sorted((version for version in needed if version < newest), reverse=True)
    alone = [version for version in older if not _is_shadowed(version, {*needed, *there}, version_slots)]
    chosen = alone[: len(keepers) - 1]
    keeps = _pins(chosen, keepers)
    lost = [version for version in older if version not in alone or not (version in chosen or version in there)]
    return VersionPlan(keeps, tuple(sorted(lost)))


def _is_shadowed(version: int, others: Collection[int], version_slots: int) -> bool:
    return any(other > version and (other - version) % version_slots == 0 for other in others)


def _pins(chosen: Sequence[int], keepers: Sequence[VersionHolder]) -> dict[str, int | None]:
    """One node for each version: the one that pins it already, else one that has it, else one that leaves for steps."""
    told: dict[str, int | None] = dict.fromkeys((keeper.name for keeper in keepers), None)
    for version in chosen:
        before = [keeper for keeper in keepers if keeper.keeps == version]
        if before:
            told[min(before, key=lambda keeper: (version not in keeper.has, keeper.name)).name] = version
    free = [keeper for keeper in keepers if told[keeper.name] is None]
    for version in chosen:
        if version not in told.values():
            best = min(free, key=lambda each: (version not in each.has, each.is_away, not each.will_leave, each.name))
            told[best.name] = version
            free.remove(best)
    return told


def with_versions(assigned: Sequence[Assignment], mine: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """The assignments with pinned versions. ``mine``: all nodes of the run.

    A node that does not roll out now gets its version when it does again: no lease of a step changes because of versions.
    """
    nodes = {node.name: node for node in mine}
    keepers = [_keeper(each, nodes[each.node], demand) for each in assigned if _rolls_out(each, nodes[each.node], demand, now)]
    needed = frozenset[int]().union(*(_versions(node, Service.AGENT_RUNNER, demand) for node in mine))
    plan = version_plan(needed, keepers, demand.version_slots)
    return [_with_version(each, nodes[each.node].lease, plan) for each in assigned]


def _with_version(assignment: Assignment, lease: Lease | None, plan: VersionPlan) -> Assignment:
    if assignment.role is Role.ROLLOUT:
        return replace(assignment, keeps=plan.keeps[assignment.node], let_go=plan.released)
    if lease is not None and lease.run == assignment.run:
        return replace(assignment, keeps=lease.keeps, let_go=lease.let_go)
    return assignment


def _rolls_out(assignment: Assignment, node: Node, demand: Demand, now: float) -> bool:
    """Whether a node samples, now or so soon that its versions may wait for it."""
    if assignment.role is Role.ROLLOUT:
        return True
    is_away = node.lease is not None and node.lease.role is not Role.ROLLOUT
    is_long_away = is_away and now - node.lease_since > STEP_SECONDS
    return not (assignment.never_rolls_out or is_long_away) and node.has(ROLLOUT) and bool(demand.served_by(node))


def _keeper(assignment: Assignment, node: Node, demand: Demand) -> VersionHolder:
    has, is_away = _versions(node, Service.ROLLOUT_WORKER, demand), assignment.role is not Role.ROLLOUT
    return VersionHolder(
        node.name, has, _keeps(node, demand), will_leave=assignment.trainer or assignment.lent, is_away=is_away
    )


def _versions(node: Node, service: Service, demand: Demand) -> frozenset[int]:
    process = node.processes.get(service)
    return frozenset(process.versions) if process is not None and process.run == demand.run else frozenset()


def _keeps(node: Node, demand: Demand) -> int | None:
    return node.lease.keeps if node.lease is not None and node.lease.run == demand.run else None
