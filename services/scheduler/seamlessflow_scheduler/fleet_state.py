"""The fleet as the scheduler sees it: which processes are present, and which lease each node has. Pure.

A process is there while its NodeStatus is in the NODES bucket. One that left is remembered for ``grace_seconds``, so that a
restart moves nothing; after that its node no longer has what only it could do.

A node's tags are what its processes announce and what was given to it by hand, less what was taken away by hand. Only the
caller's clock counts: a node whose own clock is an hour off is treated like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from seamlessflow.config.node_settings import hardware_of
from seamlessflow.contracts import Hardware, Lease, NodeOrder, NodeStatus, Role, Service
from seamlessflow.contracts.tags import ROLES

from .policy.base import ROLLOUT, TRAIN, Node, Process

NO_ORDER = NodeOrder()
STUCK_SECONDS = 10.0
"""A trainer that does not get the device of its node for this long may have to give its place to another node's."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease as it stands in the LEASES bucket."""

    lease: Lease
    revision: int
    since: float
    """When it was written, or first seen by this scheduler."""


@dataclass
class FleetState:
    """Built from successive contents of the NODES and ORDERS buckets; remembers processes that left."""

    grace_seconds: float
    _processes: dict[str, dict[str, Process]] = field(default_factory=dict)
    """As they announce themselves; orders are applied when nodes are asked for."""
    _hardware: dict[str, dict[str, Hardware]] = field(default_factory=dict)
    """By node and service, as each announces it."""
    _orders: Mapping[str, NodeOrder] = field(default_factory=dict)
    _observed_at: float = 0.0
    _known: dict[str, tuple[object, Node]] = field(default_factory=dict)
    """Nodes as they were last asked for, each with all that it was made of."""

    def observe(
        self,
        statuses: Iterable[NodeStatus],
        now: float,
        quiet: Collection[tuple[str, str]] = (),
        orders: Mapping[str, NodeOrder] | None = None,
    ) -> None:
        """Update with the processes that are present at ``now``. Schedulers are no part of the fleet.

        quiet: node and service of silent processes. orders: manual orders by node, of absent nodes too;
        None: as before.
        """
        before, self._processes = self._processes, {}
        hardware = {name: dict(announced) for name, announced in self._hardware.items()}
        for s in statuses:
            if s.service != Service.SCHEDULER:
                known = before.get(s.node, {}).get(s.service)
                process = _announced(s, (s.node, s.service) in quiet, known)
                self._processes.setdefault(s.node, {})[s.service] = process
                if s.hardware is not None:
                    hardware.setdefault(s.node, {})[s.service] = s.hardware
        for node, processes in before.items():
            for service, process in processes.items():
                if service not in self._processes.get(node, {}):
                    since = process.gone_since if process.gone_since is not None else now
                    if now - since < self.grace_seconds:
                        away = Process(process.capabilities, since)
                        if process.versions:
                            away = replace(away, run=process.run, versions=process.versions)
                        self._processes.setdefault(node, {})[service] = away
        self._hardware = {
            name: {service: of for service, of in announced.items() if service in self._processes[name]}
            for name, announced in hardware.items()
            if name in self._processes
        }
        self._known = {name: node for name, node in self._known.items() if name in self._processes}
        self._orders = self._orders if orders is None else orders
        self._observed_at = now

    def remember(self, leases: Mapping[str, Lease], now: float) -> None:
        """At start: remember absent nodes and processes that hold a lease, as they may be restarting like this scheduler."""
        for name, lease in leases.items():
            there = self._processes.get(name, {})
            if lease.run is None or (there and lease.role is Role.SERVE):
                continue
            if absent := _absent(lease, now):
                self._processes[name] = {**absent, **there}

    def nodes(self, leases: Mapping[str, HeldLease], holding: Mapping[str, frozenset[str]]) -> list[Node]:
        """All nodes that are there, or away for a moment, by name. ``holding``: services that hold a node's device."""
        return [self._node(name, leases.get(name), holding.get(name, frozenset())) for name in sorted(self._processes)]

    def _node(self, name: str, held: HeldLease | None, holding: frozenset[str]) -> Node:
        """The node as it is now: the very object of last time when nothing of it changed."""
        order, processes = self._orders.get(name, NO_ORDER), self._processes[name]
        is_stuck = held is not None and self._is_stuck(processes, held, holding)
        inputs = (processes, held, holding, order, self._hardware.get(name), is_stuck)
        known = self._known.get(name)
        if known is None or known[0] != inputs:
            known = self._known[name] = (inputs, self._made(name, processes, held, holding, order, is_stuck=is_stuck))
        return known[1]

    def _made(
        self,
        name: str,
        processes: Mapping[str, Process],
        held: HeldLease | None,
        holding: frozenset[str],
        order: NodeOrder,
        *,
        is_stuck: bool,
    ) -> Node:
        taken_away = frozenset(order.remove)
        if taken_away:
            processes = {
                service: replace(process, capabilities=process.capabilities - taken_away)
                for service, process in processes.items()
            }
        return Node(
            name,
            processes,
            held.lease if held is not None else None,
            held.since if held is not None else 0.0,
            holding,
            tags=frozenset(order.add) - frozenset(ROLES),  # a role takes a process that can play it
            taken_away=taken_away,
            hardware=hardware_of(self._hardware.get(name, {})),
            is_drained=order.drain,
            is_stuck=is_stuck,
        )

    def _is_stuck(self, processes: Mapping[str, Process], held: HeldLease, holding: frozenset[str]) -> bool:
        """Whether the node's trainer waits for a device whose holder is silent, or gone without releasing it.

        The device of a dead process is free whatever it published; then the trainer takes it at once and publishes that.
        """
        waits = held.lease.role is Role.TRAIN and self._observed_at - held.since >= STUCK_SECONDS
        trainer = processes.get(Service.TRAINER)
        if not waits or trainer is None or trainer.gone_since is not None or Service.TRAINER in holding:
            return False
        keepers = [processes.get(service) for service in holding]
        return any(keeper is None or keeper.gone_since is not None or keeper.is_quiet for keeper in keepers)


def _announced(status: NodeStatus, is_quiet: bool, known: Process | None) -> Process:
    """A process as it announces itself: the very object of last time when nothing of it changed."""
    announced = Process(
        frozenset(status.capabilities), is_quiet=is_quiet, epoch=status.epoch, run=status.run, versions=status.versions
    )
    return known if known == announced else announced


def _absent(lease: Lease, now: float) -> dict[str, Process]:
    """Processes that a node without presence should have, by its lease."""
    found: dict[str, Process] = {}
    if lease.trainer or lease.role is Role.TRAIN:
        found[Service.TRAINER] = Process(frozenset({TRAIN}), now)
    if lease.role is Role.ROLLOUT or (lease.role is Role.TRAIN and not lease.hand_back):
        found[Service.ROLLOUT_WORKER] = Process(frozenset({ROLLOUT}), now)
    if lease.role is Role.SERVE:
        is_manager = all(tag.isdigit() for tag in lease.tags)  # one whose shards were moved has none left
        found[Service.TRAJECTORY_MANAGER if is_manager else Service.AGENT_RUNNER] = Process(frozenset(), now)
    return found


def split_evenly(num_parts: int, held: Mapping[str, Iterable[int]]) -> dict[str, tuple[int, ...]]:
    """Parts (shards of trees) for each node, as even as can be, moving as few as that allows.

    held: each node there is, with the parts it has now (a part of a node that is gone is in no list).
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
