"""Looking at the fleet: presences and orders as they stand in their buckets, taken into the pure pictures of them."""

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
from .fleet_state import Fleet
from .policy import Node

# Two living processes under one name: they overwrite each other's presence, so their instances alternate. Pure.
#
# A restart shows a new instance once and the old one never again; an instance that comes back after another lives beside it.


Name = tuple[str, str]
"""Node and service."""
REMEMBERED_SECONDS = 60.0
"""An instance that was not seen for this long is forgotten: its name may be used again."""
SAID_SECONDS = 10.0
"""How long two are said to be there after they were last seen to alternate."""


@dataclass
class Doubles:
    """Fed with the instance that each presence names at a time."""

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
        self._found = {name: found for name, found in self._found.items() if now - found[1] < SAID_SECONDS}


# Which processes have fallen silent, long before their presence expires. Pure.
#
# A presence is renewed under a new revision each time. Only the time in which the bucket was really looked at counts, so a
# scheduler or server that was away for a while takes nobody for dead: all have their time again.


"""Node and service."""
BLIND_SECONDS = 1.5
"""Longest time between two looks that still counts as watching."""


@dataclass
class Pulse:
    """Fed with the revisions of all presences at a time."""

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


class Lookout:
    """``fleet`` is what the last look saw. Everything a person should know of a node is logged when it changes."""

    def __init__(self, context: Context, settings: SchedulerSettings) -> None:
        self._context = context
        self.fleet = Fleet(settings.gone_seconds)
        self._pulse, self._doubles = Pulse(settings.quiet_seconds), Doubles()
        self._said: dict[str, object] = {}
        self._orders: dict[str, NodeOrder] = {}

    async def look(self, now: float) -> None:
        """Read both buckets. ``now``: Unix seconds."""
        statuses, revisions, instances = list[NodeStatus](), dict[Name, int](), dict[Name, str]()
        for entry in await (await self._context.bus.kv(NODES_BUCKET)).entries():
            try:
                status = unpack_record(NodeStatus, entry.value)
            except MalformedMessage as wrong:
                self._say_once(f"node {entry.key}", "node.unreadable", process=entry.key, reason=str(wrong))
                continue
            statuses.append(status)
            revisions[status.node, status.service] = entry.revision
            if status.service != Service.SCHEDULER:  # followers may share a node with their leader
                instances[status.node, status.service] = status.instance
        orders = await self._read_orders()
        self.fleet.observe(statuses, now, self._pulse.observe(revisions, time.monotonic()), orders)
        self._show_doubles(self._doubles.observe(instances, time.monotonic()))

    def warn_of(self, nodes: list[Node]) -> None:
        """Say which nodes are deployed in a way that cannot work."""
        for node in nodes:
            if node.num_roles > 1:
                services = sorted(node.processes)
                self._say_once(f"roles {node.name}", "node.has_two_roles", node=node.name, services=services,
                               advice="give agent-runner and trajectory-manager a SEAMLESSFLOW_NODE of their own")  # fmt: skip
            if node.is_stuck:
                keepers = sorted(node.holding)
                self._say_once(f"stuck {node.name}", "node.device_stuck", node=node.name, kept_by=keepers,
                               advice="it is there and hangs, or ended without a word: end it, or start it again")  # fmt: skip

    async def _read_orders(self) -> dict[str, NodeOrder]:
        """What people ordered by hand, of nodes that are not there, too. What cannot be read changes nothing of its node."""
        orders = dict[str, NodeOrder]()
        for entry in await (await self._context.bus.kv(ORDERS_BUCKET)).entries():
            try:
                orders[entry.key] = unpack_record(NodeOrder, entry.value)
            except MalformedMessage as wrong:
                self._say_once(f"order {entry.key}", "order.unreadable", node=entry.key, reason=str(wrong))
                if entry.key in self._orders:
                    orders[entry.key] = self._orders[entry.key]
        self._orders = orders
        return orders

    def _show_doubles(self, doubles: Mapping[Name, tuple[str, str]]) -> None:
        """In the log, and in our presence, where ``seamlessflow nodes`` finds them."""
        for (node, service), pair in doubles.items():
            self._say_once(f"double {node} {service}", "node.has_two_processes", node=node, service=service, instances=pair,
                           advice="end one of them, or give it a SEAMLESSFLOW_NODE of its own")  # fmt: skip
        self._context.presence.update(
            facts={f"{CONFLICT}{node}.{service}": " and ".join(pair) for (node, service), pair in doubles.items()}
        )

    def _say_once(self, key: str, event: str, **fields: object) -> None:
        if self._said.get(key) != fields:
            self._said[key] = fields
            log.warning(event, **fields)
