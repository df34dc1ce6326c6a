"""``seamlessflow nodes``: who there is, with what, and what each holds."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..client import Client
from ..contracts import Hardware, Lease
from ..errors import ConfigError
from ..fleet_records import Unreadable
from .fleet_view import NodeView, node_views
from .options import NatsUrl
from .place import any_address
from .screen import make_console

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
