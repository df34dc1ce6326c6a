"""The fleet as the scheduler sees it: which processes are there, and what each node was told. Pure.

A process is there while its NodeStatus is in the NODES bucket. One that left is remembered for ``grace_seconds``, so that a
restart moves nothing; after that its node no longer has what only it could do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from seamlessflow.contracts import Lease, NodeStatus, Role, Service

from .policy.base import ROLLOUT, TRAIN, Node, Process


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease as it stands in the LEASES bucket."""

    lease: Lease
    revision: int
    since: float
    """When it was written, or first seen by this scheduler."""


@dataclass
class Fleet:
    """Fed with everything the NODES bucket holds at a time; remembers who left."""

    grace_seconds: float
    _processes: dict[str, dict[str, Process]] = field(default_factory=dict)

    def observe(self, statuses: Iterable[NodeStatus], now: float, quiet: Collection[tuple[str, str]] = ()) -> None:
        """Take in who is there at ``now``. Schedulers themselves are no part of the fleet.

        quiet: node and service of those that have fallen silent.
        """
        there = {
            (s.node, s.service): Process(
                frozenset(s.capabilities), is_quiet=(s.node, s.service) in quiet, epoch=s.epoch, run=s.run
            )
            for s in statuses
            if s.service != Service.SCHEDULER
        }
        for node, processes in self._processes.items():
            for service, process in processes.items():
                if (node, service) not in there:
                    since = process.gone_since if process.gone_since is not None else now
                    if now - since < self.grace_seconds:
                        there[node, service] = Process(process.capabilities, since)
        self._processes = {}
        for (node, service), process in there.items():
            self._processes.setdefault(node, {})[service] = process

    def remember(self, leases: Mapping[str, Lease], now: float) -> None:
        """At start: a node that holds a lease and is not there may be restarting, as this scheduler did."""
        for name, lease in leases.items():
            if name not in self._processes and lease.run is not None and (absent := _absent(lease, now)):
                self._processes[name] = absent

    def nodes(self, leases: Mapping[str, HeldLease], holding: Mapping[str, frozenset[str]]) -> list[Node]:
        """All nodes that are there, or away for a moment, by name. ``holding``: services that hold a node's device."""
        nodes = []
        for name, processes in sorted(self._processes.items()):
            held = leases.get(name)
            lease, since = (held.lease, held.since) if held is not None else (None, 0.0)
            nodes.append(Node(name, processes, lease, since, holding.get(name, frozenset())))
        return nodes


def _absent(lease: Lease, now: float) -> dict[str, Process]:
    """What a lease tells of the processes of a node that nobody has seen yet."""
    found: dict[str, Process] = {}
    if lease.trainer:
        found[Service.TRAINER] = Process(frozenset({TRAIN}), now)
    if lease.role is Role.ROLLOUT or (lease.role is Role.TRAIN and not lease.hand_back):
        found[Service.ROLLOUT_WORKER] = Process(frozenset({ROLLOUT}), now)
    if lease.role is Role.SERVE:
        is_manager = all(tag.isdigit() for tag in lease.tags)  # one whose shards were moved has none left
        found[Service.TRAJECTORY_MANAGER if is_manager else Service.AGENT_RUNNER] = Process(frozenset(), now)
    return found


def split_evenly(num_parts: int, held: Mapping[str, Iterable[int]]) -> dict[str, tuple[int, ...]]:
    """Parts (shards of trees, affinity buckets) for each node, as even as can be, moving as few as that allows.

    held: each node there is, with the parts it has now (a part of a node that is gone is in nobody's list).
    Empty when there is no node.
    """
    names = sorted(held)
    if not names:
        return {}
    least, spare = divmod(num_parts, len(names))
    free = set(range(num_parts))
    kept: dict[str, list[int]] = {name: [] for name in names}
    for name in sorted(names, key=lambda name: -len(set(held[name]) & free)):
        quota = least + (spare > 0)
        kept[name] = sorted(set(held[name]) & free)[:quota]
        spare -= len(kept[name]) > least
        free -= set(kept[name])
    for part in sorted(free):
        kept[min(names, key=lambda name: (len(kept[name]), name))].append(part)
    return {name: tuple(sorted(parts)) for name, parts in kept.items()}
