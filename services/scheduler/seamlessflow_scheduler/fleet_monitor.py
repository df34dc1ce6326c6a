"""Reads presences and orders from their buckets into ``FleetState``; finds silent processes and duplicate ones.

``DuplicateProcesses`` and ``HeartbeatMonitor`` are pure; ``FleetMonitor`` reads the buckets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from seamlessflow.codec import unpack_record
from seamlessflow.contracts import NodeOrder, NodeStatus, Service
from seamlessflow.contracts.fleet import CONFLICT
from seamlessflow.contracts.routes import NODES_BUCKET, ORDERS_BUCKET
from seamlessflow.errors import MalformedMessage
from seamlessflow.runtime import Context

from .config import SchedulerSettings
from .fleet_state import FleetState
from .policy import Node

Name = tuple[str, str]
"""Node and service."""
REMEMBERED_SECONDS = 60.0
"""An instance that was not seen for this long is forgotten: its name may be used again."""
REPORTED_SECONDS = 10.0
"""How long a pair is reported after its instances were last seen to alternate."""


@dataclass
class DuplicateProcesses:
    """Finds two living processes under one name: they overwrite each other's presence, so their instances alternate.

    A restart shows a new instance once and the old one never again. Fed with the instance that each presence names.
    """

    _seen: dict[Name, dict[str, float]] = field(default_factory=dict)
    """By process: its instances, the newest last, each with when it was last seen."""
    _found: dict[Name, tuple[tuple[str, str], float]] = field(default_factory=dict)

    def observe(self, instances: Mapping[Name, str], now: float) -> dict[Name, tuple[str, str]]:
        """Names that two processes have now, with the two instances. ``now``: seconds that never go back."""
        self._forget(now)
        for name, instance in instances.items():
            seen = self._seen.setdefault(name, {})
            newest = next(reversed(seen), instance)
            if instance != newest and instance in seen:
                one, other = sorted((instance, newest))
                self._found[name] = (one, other), now
            seen.pop(instance, None)
            seen[instance] = now
        return {name: pair for name, (pair, _) in self._found.items()}

    def _forget(self, now: float) -> None:
        kept = {
            name: {each: at for each, at in seen.items() if now - at < REMEMBERED_SECONDS} for name, seen in self._seen.items()
        }
        self._seen = {name: seen for name, seen in kept.items() if seen}
        self._found = {name: found for name, found in self._found.items() if now - found[1] < REPORTED_SECONDS}


BLIND_SECONDS = 1.5
"""Longest time between two reads that still counts as watching."""


@dataclass
class HeartbeatMonitor:
    """Finds processes that fell silent, long before their presence expires. Fed with the revisions of all presences.

    A renewal has a new revision. Only time in which the bucket was read counts: after an outage of the scheduler or the
    server every process has its full time again.
    """

    quiet_seconds: float
    _seen: dict[Name, tuple[int, float]] = field(default_factory=dict)
    """By process: its newest revision, and since when it was that."""
    _looked_at: float = 0.0

    def observe(self, revisions: Mapping[Name, int], now: float) -> frozenset[Name]:
        """Processes that did not renew for ``quiet_seconds``."""
        blind = not 0 <= now - self._looked_at <= BLIND_SECONDS
        before, self._looked_at = self._seen, now
        self._seen = {}
        for process, revision in revisions.items():
            known, since = before.get(process, (revision, now))
            self._seen[process] = (revision, since if known == revision and not blind else now)
        return frozenset(process for process, (_, since) in self._seen.items() if now - since >= self.quiet_seconds)


log = structlog.get_logger()


class FleetMonitor:
    """Keeps ``fleet`` up to date and logs each problem of a node once, when it changes."""

    def __init__(self, context: Context, settings: SchedulerSettings) -> None:
        self._context = context
        self.fleet = FleetState(settings.gone_seconds)
        self._heartbeats, self._duplicates = HeartbeatMonitor(settings.quiet_seconds), DuplicateProcesses()
        self._warned: dict[str, object] = {}
        self._orders: dict[str, NodeOrder] = {}

    async def read(self, now: float) -> None:
        """Read both buckets. ``now``: Unix seconds."""
        statuses, revisions, instances = list[NodeStatus](), dict[Name, int](), dict[Name, str]()
        for entry in await (await self._context.bus.kv(NODES_BUCKET)).entries():
            try:
                status = unpack_record(NodeStatus, entry.value)
            except MalformedMessage as wrong:
                self._warn_once(f"node {entry.key}", "node.unreadable", process=entry.key, reason=str(wrong))
                continue
            statuses.append(status)
            revisions[status.node, status.service] = entry.revision
            if status.service != Service.SCHEDULER:  # followers may share a node with their leader
                instances[status.node, status.service] = status.instance
        orders = await self._read_orders()
        self.fleet.observe(statuses, now, self._heartbeats.observe(revisions, time.monotonic()), orders)
        self._report_duplicates(self._duplicates.observe(instances, time.monotonic()))

    def warn_of(self, nodes: list[Node]) -> None:
        """Log the nodes whose deployment cannot work."""
        for node in nodes:
            if node.num_roles > 1:
                services = sorted(node.processes)
                self._warn_once(f"roles {node.name}", "node.has_two_roles", node=node.name, services=services,
                               advice="give agent-runner and trajectory-manager a SEAMLESSFLOW_NODE of their own")  # fmt: skip
            if node.is_stuck:
                keepers = sorted(node.holding)
                self._warn_once(f"stuck {node.name}", "node.device_stuck", node=node.name, kept_by=keepers,
                               advice="it hangs, or ended without releasing the device: end it, or start it again")  # fmt: skip

    async def _read_orders(self) -> dict[str, NodeOrder]:
        """Manual orders, of absent nodes too. A node whose order is unreadable keeps its former one."""
        orders = dict[str, NodeOrder]()
        for entry in await (await self._context.bus.kv(ORDERS_BUCKET)).entries():
            try:
                orders[entry.key] = unpack_record(NodeOrder, entry.value)
            except MalformedMessage as wrong:
                self._warn_once(f"order {entry.key}", "order.unreadable", node=entry.key, reason=str(wrong))
                if entry.key in self._orders:
                    orders[entry.key] = self._orders[entry.key]
        self._orders = orders
        return orders

    def _report_duplicates(self, duplicates: Mapping[Name, tuple[str, str]]) -> None:
        """Log duplicate processes, and put them into our presence, where ``seamlessflow nodes`` finds them."""
        for (node, service), pair in duplicates.items():
            self._warn_once(f"double {node} {service}", "node.has_two_processes", node=node, service=service, instances=pair,
                           advice="end one of them, or give it a SEAMLESSFLOW_NODE of its own")  # fmt: skip
        self._context.presence.update(
            facts={f"{CONFLICT}{node}.{service}": " and ".join(pair) for (node, service), pair in duplicates.items()}
        )

    def _warn_once(self, key: str, event: str, **fields: object) -> None:
        if self._warned.get(key) != fields:
            self._warned[key] = fields
            log.warning(event, **fields)
