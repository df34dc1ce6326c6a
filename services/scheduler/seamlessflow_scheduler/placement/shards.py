"""Divides the shards of a run among its trajectory-managers. Pure.

A shard is in one lease at most, and is given to a manager only when no other can still act on it:

    in the lease of A ──(A has too many)──▶ in no lease, A obeys an older lease ──(A obeys this one)──▶ in the lease of B
    in the lease of A ──(A is silent)─────▶ in no lease ──(a tick after that: A is still silent)──────▶ in the lease of B

The second arrow of the second line is a step of its own because A may have woken up just then: it reads its lease after it
renewed its presence, so either the next tick sees it there, or it sees that it lost the shard. A newcomer first gets a
lease without shards, and nothing is taken from others for it before it has the model. While no manager is there nothing is
taken from those that may come back.
"""

from __future__ import annotations

from collections.abc import Sequence

from seamlessflow.contracts import Service
from seamlessflow_scheduler.fleet_state import split_evenly
from seamlessflow_scheduler.policy import Demand, Node

RELEASE_SECONDS = 10.0
"""A manager that is there and does not obey its lease for this long is no longer waited for."""


def share(managers: Sequence[Node], everyone: Sequence[Node], demand: Demand, now: float) -> dict[str, tuple[int, ...]]:
    """The shards of each manager of the run from now on. ``everyone``: the whole fleet."""
    held = {node.name: frozenset(_held(node, demand)) for node in managers}
    there = [node for node in managers if is_there(node)]
    if not there:
        return {name: tuple(sorted(shards)) for name, shards in held.items()}
    able = [node for node in there if held[node.name] or _has_model(node, demand)] or there
    wanted = split_evenly(demand.num_shards, {node.name: held[node.name] for node in able})
    # Also those of a manager that goes to another run now: it acts on them until it obeys its next lease.
    busy = (shard for node in everyone if Service.TRAJECTORY_MANAGER in node.processes for shard in _held(node, demand))
    free = frozenset(range(demand.num_shards)).difference(busy, *held.values())
    slow = {node.name for node in everyone if _is_slow(node, now)}
    shares = {}
    for node in managers:
        mine = frozenset(wanted.get(node.name, ()))
        granted = mine & free if slow <= {node.name} else frozenset[int]()
        shares[node.name] = tuple(sorted((mine & held[node.name]) | granted))
    return shares


def is_there(node: Node) -> bool:
    """Whether its manager is there, and not merely expected back."""
    process = node.processes.get(Service.TRAJECTORY_MANAGER)
    return process is not None and process.gone_since is None and not process.is_quiet


def _is_slow(node: Node, now: float) -> bool:
    """Whether its manager may still act on shards that its lease does not name."""
    process = node.processes.get(Service.TRAJECTORY_MANAGER)
    if process is None or node.lease is None or not is_there(node):
        return False
    return process.epoch < node.lease.epoch and now - node.lease_since < RELEASE_SECONDS


def _has_model(node: Node, demand: Demand) -> bool:
    return node.processes[Service.TRAJECTORY_MANAGER].run == demand.run


def _held(node: Node, demand: Demand) -> list[int]:
    if node.lease is None or node.lease.run != demand.run:
        return []
    return [shard for tag in node.lease.tags if tag.isdigit() and (shard := int(tag)) < demand.num_shards]
