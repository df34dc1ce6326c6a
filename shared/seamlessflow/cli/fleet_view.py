"""Nodes as people see them: processes, lease and orders of each put together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..contracts import Hardware, Lease, NodeOrder, NodeStatus, Service
from ..contracts.fleet import CONFLICT
from ..contracts.tags import ROLES
from ..node_hardware import hardware_of
from ..tag_rules import Rule


@dataclass(frozen=True)
class NodeView:
    """One node. ``processes``: those that are there, by name of service; empty for a node of which only an order is known."""

    name: str
    processes: tuple[NodeStatus, ...]
    lease: Lease | None
    order: NodeOrder
    conflicts: Mapping[str, str]
    """Services of which two processes claim to be this node's, with their instances."""
    unreadable: tuple[str, ...] = ()
    """What stands of it on the server and cannot be read, in words."""
    rules: Mapping[str, Sequence[tuple[str, Rule]]] = field(default_factory=dict)
    """Tags by what hardware is, of the runs that go on."""

    @property
    def announced(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(tag for process in self.processes for tag in process.capabilities))

    @property
    def tags(self) -> tuple[str, ...]:
        """What it has: announced or added, and not taken away. A role that is added needs a process that can play it."""
        return tuple(tag for tag in dict.fromkeys((*self.announced, *self.added, *self.ruled)) if tag not in self.order.remove)

    @property
    def added(self) -> tuple[str, ...]:
        """Given by hand, and not announced."""
        return tuple(tag for tag in self.order.add if tag not in ROLES and tag not in self.announced)

    @property
    def ruled(self) -> dict[str, list[str]]:
        """Tags that rules would give it, each with the runs whose rules they are, whatever is announced or ordered."""
        found: dict[str, list[str]] = {}
        for run, rules in sorted(self.rules.items()):
            for tag in dict.fromkeys(tag for tag, rule in rules if rule.holds(self.hardware)):
                found.setdefault(tag, []).append(run)
        return found

    @property
    def engine(self) -> str:
        return next((process.engine for process in self.processes if process.engine), "")

    @property
    def hardware(self) -> Hardware | None:
        return hardware_of({each.service: each.hardware for each in self.processes if each.hardware is not None})

    @property
    def slots(self) -> tuple[int, int] | None:
        """Used and all; None for a node that samples nothing."""
        worker = self._process(Service.ROLLOUT_WORKER)
        return None if worker is None or not worker.slots else (int(worker.facts.get("generations", 0)), worker.slots)

    def fact(self, name: str) -> str | int | float | None:
        """A fact of whichever of its processes has it."""
        return next((process.facts[name] for process in self.processes if name in process.facts), None)

    def why(self) -> list[str]:
        """Its state: what is wrong, what was ordered, what its lease says, and what each process does or waits for."""
        said = [f"CONFLICT: two {service} processes: {pair}" for service, pair in self.conflicts.items()]
        said += self.unreadable
        if self.order.drain:
            said.append("drained by hand")
        if not self.processes:
            said.append("nothing of it is there")
        if self.lease is not None and self.lease.reason and not (self.order.drain and self.lease.run is None):
            said.append(self.lease.reason)
        if self.why_never is not None:
            said.append(self.why_never)
        return said + [f"{process.service}: {_state(process)}" for process in self.processes if process.state]

    @property
    def why_never(self) -> str | None:
        """Why it never got a lease, where nothing else says it."""
        if self.lease is not None or self.order.drain or all(each.service == Service.SCHEDULER for each in self.processes):
            return None
        roles = [tag for tag in self.announced if tag in ("rollout", "train")]
        if roles and all(role in self.order.remove for role in roles):
            return f"nothing is left that it may do; taken away by hand: {', '.join(roles)}"
        return "no run has needed it yet"

    def _process(self, service: Service) -> NodeStatus | None:
        return next((process for process in self.processes if process.service == service), None)

    def to_json(self) -> dict[str, Any]:
        """For programs: everything, under names that say what it is."""
        slots = self.slots
        return {
            "node": self.name,
            "services": {
                each.service: {"instance": each.instance, "pid": each.pid, "state": each.state, "facts": each.facts}
                for each in self.processes
            },
            "tags": list(self.tags),
            "tags_announced": list(self.announced),
            "tags_added": list(self.order.add),
            "tags_removed": list(self.order.remove),
            "tags_by_rule": self.ruled,
            "drained": self.order.drain,
            "engine": self.engine,
            "slots_used": None if slots is None else slots[0],
            "slots": None if slots is None else slots[1],
            "hardware": None if self.hardware is None else self.hardware.model_dump(),
            "tokens_per_second": self.fact("tokens_per_second"),
            "affinity_hit_rate": self.fact("affinity_hit_rate"),
            "lease": None if self.lease is None else self.lease.model_dump(mode="json"),
            "conflicts": dict(self.conflicts),
            "unreadable": list(self.unreadable),
            "why": self.why(),
        }


def _state(process: NodeStatus) -> str:
    """What it does, with what it keeps while it does nothing."""
    held = process.facts.get("generations", 0)
    return f"{process.state} with {held} generations" if process.state == "frozen" and held else process.state


def node_views(
    statuses: Iterable[NodeStatus],
    leases: Mapping[str, Lease],
    orders: Mapping[str, NodeOrder],
    *,
    with_gone: bool = False,
    unreadable: Mapping[str, Sequence[str]] | None = None,
    rules: Mapping[str, Sequence[tuple[str, Rule]]] | None = None,
) -> dict[str, NodeView]:
    """Every node that is there, has a run, or of which something was ordered, by name; ``with_gone``: or ever had a lease.

    unreadable: what could not be read, by node. rules: by run that goes on.
    """
    processes: dict[str, list[NodeStatus]] = {}
    conflicts: dict[str, dict[str, str]] = {}
    for status in statuses:
        processes.setdefault(status.node, []).append(status)
        for fact, pair in status.facts.items():
            if status.service == Service.SCHEDULER and fact.startswith(CONFLICT):
                node, _, service = fact.removeprefix(CONFLICT).partition(".")
                conflicts.setdefault(node, {})[service] = str(pair)
    ordered = {name for name, order in orders.items() if order != NodeOrder()}
    holding = {name for name, lease in leases.items() if with_gone or lease.run is not None}
    return {
        name: NodeView(
            name,
            tuple(sorted(processes.get(name, ()), key=lambda process: process.service)),
            leases.get(name),
            orders.get(name, NodeOrder()),
            conflicts.get(name, {}),
            tuple((unreadable or {}).get(name, ())),
            rules or {},
        )
        for name in sorted({*processes, *ordered, *holding, *(unreadable or ())})
    }
