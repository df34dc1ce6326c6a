"""``seamlessflow nodes``: who there is, with what, and what each holds."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from seamlessflow.client import Client
from seamlessflow.config.node_settings import hardware_of
from seamlessflow.config.tag_rules import Rule
from seamlessflow.contracts import Hardware, Lease, NodeOrder, NodeStatus, Service
from seamlessflow.contracts.fleet import CONFLICT
from seamlessflow.contracts.tags import ROLES
from seamlessflow.errors import ConfigError
from seamlessflow.runtime.node_records import Unreadable

from .console import make_console
from .options import NatsUrl
from .run_location import any_address

# Nodes as people see them: processes, lease and orders of each put together. Pure.


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


NodeArgument = Annotated[str, typer.Argument(help="Name of the node, as `nodes` shows it.")]


async def read_fleet(client: Client, *, with_gone: bool = False) -> dict[str, NodeView]:
    """All nodes there are, by name; ``with_gone``: or were."""
    unreadable = Unreadable()
    return node_views(
        await client.statuses(unreadable),
        await client.leases(unreadable),
        await client.orders(unreadable),
        with_gone=with_gone,
        unreadable=unreadable,
        rules=await client.tag_rules(),
    )


async def one_node(client: Client, name: str) -> NodeView:
    """Raises ConfigError for a name that nobody has, with those there are."""
    known = await read_fleet(client, with_gone=True)
    if name not in known:
        raise ConfigError(f"there is no node {name!r}; there are: {', '.join(await read_fleet(client)) or 'none'}")
    return known[name]


def nodes(nats: NatsUrl = None, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Who is there: services, tags, device, what each node holds and since when, and why."""

    async def look() -> list[NodeView]:
        async with Client.open(any_address(nats)) as client:
            return list((await read_fleet(client)).values())

    views = asyncio.run(look())
    if as_json:
        print(json.dumps([view.to_json() for view in views], indent=1))
    else:
        make_console().print(nodes_table(views, time.time()))


def nodes_table(views: list[NodeView], now: float) -> Table:
    """One row a node; what belongs together stands in one cell, so that it fits a terminal."""
    table = Table(show_lines=True)
    for column in ("node", "tags", "device", "holds", "why"):
        table.add_column(column, overflow="fold")
    for view in views:
        services = [process.service for process in view.processes]
        cells = [[view.name, *services], tag_words(view), _device(view), _holds(view.lease, now), view.why()]
        table.add_row(*(escape("\n".join(lines)) for lines in cells))
    return table


def tag_words(view: NodeView) -> list[str]:
    """What it has and has not, each with who gave or took it unless its processes announce it."""
    ruled = {tag: runs for tag, runs in view.ruled.items() if tag not in (*view.announced, *view.added)}
    return [
        *(tag for tag in view.tags if tag in view.announced),
        *(f"+{tag} (by hand)" for tag in view.added if tag in view.tags),
        *(f"{tag} (rule of {', '.join(runs)})" for tag, runs in ruled.items() if tag in view.tags),
        *(f"-{tag} (by hand)" for tag in view.order.remove),
    ]


def _device(view: NodeView) -> list[str]:
    slots, speed, rate = view.slots, view.fact("tokens_per_second"), view.fact("affinity_hit_rate")
    return [
        *([hardware_words(view.hardware)] if view.hardware is not None else []),
        *([view.engine] if view.engine else []),
        *([f"{slots[0]} of {slots[1]} slots"] if slots is not None else []),
        *([f"{speed:,} tokens/s"] if speed is not None else []),
        *([f"{float(rate):.0%} of prompts cached"] if rate is not None else []),
    ]


def hardware_words(hardware: Hardware) -> str:
    """``H800, 80 GB, 990 TFLOPS, 3.4 TB/s``; what is not known is left out."""
    return ", ".join(
        [
            hardware.device or "device",
            *([f"{hardware.memory_bytes / 1e9:.0f} GB"] if hardware.memory_bytes else []),
            *([f"{hardware.flops / 1e12:.3g} TFLOPS"] if hardware.flops else []),
            *([f"{hardware.bandwidth_bytes / 1e12:.3g} TB/s"] if hardware.bandwidth_bytes else []),
        ]
    )


def _holds(lease: Lease | None, now: float) -> list[str]:
    if lease is None or lease.run is None:
        return ["nothing", *(since_words(lease, now) if lease is not None else [])]
    return [
        f"{lease.role.value} for {lease.run}" + (", lent" if lease.lent else ""),
        *([" ".join(lease.tags)] if lease.tags else []),
        *([f"gang {' '.join(lease.gang)}"] if lease.gang else []),
        f"epoch {lease.epoch}",
        *since_words(lease, now),
    ]


def since_words(lease: Lease, now: float) -> list[str]:
    """For how long it stands; nothing where that is not known."""
    return [f"for {duration_words(now - lease.since)}"] if lease.since else []


def duration_words(seconds: float) -> str:
    """``42 s``, ``3 min 5 s``, ``2 h 10 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
