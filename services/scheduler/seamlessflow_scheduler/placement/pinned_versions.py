"""Which older weights version each node has beside the newest, where episodes keep the version they began with. Pure.

    newest 7, needed 7 6 5      a has 7 5, keeps 5         b has 7 6, keeps 6      c has 7 6, told nothing
    newest 8, needed 8 7 6 5    a has 8 5, told nothing    b has 8 6, keeps 6      c has 8 7, keeps 7
    newest 9, needed 9 8 7 6    a has 9 8                  b has 9 6               c has 9 7                  5 is let go

Every node takes every newest version, so it has room for one older. Told nothing it keeps what was the newest before; told a
version it keeps that one, or fetches it. One node at least is told nothing, so that what is the newest now has a holder when
the next one comes. Where more versions are needed than there are nodes the oldest are let go: their tokens are the next to be
too old to train. A version that was let go may still be had until its holder needs the room.

Always true: a version that is told to a node stays with it as long as it is needed and there is room for it; the same
picture gives the same answer, and once it is followed nothing moves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from seamlessflow.contracts import Lease, Role, Service
from seamlessflow_scheduler.policy import Assignment, Demand, Node
from seamlessflow_scheduler.policy.base import ROLLOUT

STEP_SECONDS = 60.0
"""For so long what only a node has that takes a step waits for it; then others fetch it, or it is let go."""


@dataclass(frozen=True, slots=True)
class Keeper:
    """A node that rolls out, now or again later. ``has``: versions it can sample under. ``keeps``: what it is told now."""

    name: str
    has: frozenset[int] = frozenset()
    keeps: int | None = None
    will_leave: bool = False
    """It takes steps in between."""
    is_away: bool = False
    """It takes one now, or waits for one."""


@dataclass(frozen=True, slots=True)
class Kept:
    """``keeps``: by node, what it is to keep. ``let_go``: needed versions that nobody has, or will have, oldest first."""

    keeps: Mapping[str, int | None]
    let_go: tuple[int, ...] = ()


def kept(needed: Collection[int], keepers: Sequence[Keeper], version_slots: int) -> Kept:
    """What each node is to keep. ``needed``: versions that live episodes keep.

    Of two versions in one slot the older is let go: whoever has one of them would get generations of both.
    """
    there = frozenset[int]().union(*(keeper.has for keeper in keepers))
    if not there:  # nothing is known of anybody: a worker that starts says soon what it has
        return Kept({keeper.name: keeper.keeps for keeper in keepers})
    newest = max(there)
    older = sorted((version for version in needed if version < newest), reverse=True)
    alone = [version for version in older if not _is_shadowed(version, {*needed, *there}, version_slots)]
    chosen = alone[: len(keepers) - 1]
    keeps = _told(chosen, keepers)
    lost = [version for version in older if version not in alone or not (version in chosen or version in there)]
    return Kept(keeps, tuple(sorted(lost)))


def _is_shadowed(version: int, others: Collection[int], version_slots: int) -> bool:
    return any(other > version and (other - version) % version_slots == 0 for other in others)


def _told(chosen: Sequence[int], keepers: Sequence[Keeper]) -> dict[str, int | None]:
    """One node for each version: who keeps it already, else who has it, else who leaves for steps."""
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


def with_versions(said: Sequence[Assignment], mine: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """What each node of a run is to do, and which version it keeps. ``mine``: all nodes of the run.

    Who does not roll out now is told when it does again: no lease of a step changes because of versions.
    """
    nodes = {node.name: node for node in mine}
    keepers = [_keeper(each, nodes[each.node], demand) for each in said if _rolls_out(each, nodes[each.node], demand, now)]
    needed = frozenset[int]().union(*(_versions(node, Service.AGENT_RUNNER, demand) for node in mine))
    told = kept(needed, keepers, demand.version_slots)
    return [_telling(each, nodes[each.node].lease, told) for each in said]


def _telling(said: Assignment, lease: Lease | None, told: Kept) -> Assignment:
    if said.role is Role.ROLLOUT:
        return replace(said, keeps=told.keeps[said.node], let_go=told.let_go)
    if lease is not None and lease.run == said.run:
        return replace(said, keeps=lease.keeps, let_go=lease.let_go)
    return said


def _rolls_out(said: Assignment, node: Node, demand: Demand, now: float) -> bool:
    """Whether a node samples, now or so soon that what it has may wait for it."""
    if said.role is Role.ROLLOUT:
        return True
    is_away = node.lease is not None and node.lease.role is not Role.ROLLOUT
    is_long_away = is_away and now - node.lease_since > STEP_SECONDS
    return not (said.never_rolls_out or is_long_away) and node.has(ROLLOUT) and bool(demand.served_by(node))


def _keeper(said: Assignment, node: Node, demand: Demand) -> Keeper:
    has, is_away = _versions(node, Service.ROLLOUT_WORKER, demand), said.role is not Role.ROLLOUT
    return Keeper(node.name, has, _keeps(node, demand), will_leave=said.trainer or said.lent, is_away=is_away)


def _versions(node: Node, service: Service, demand: Demand) -> frozenset[int]:
    process = node.processes.get(service)
    return frozenset(process.versions) if process is not None and process.run == demand.run else frozenset()


def _keeps(node: Node, demand: Demand) -> int | None:
    return node.lease.keeps if node.lease is not None and node.lease.run == demand.run else None
