"""``seamlessflow why``: what a node holds and held, for which reasons, and what would change it."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Annotated

import typer
from rich.markup import escape

from seamlessflow.bus.base import Record
from seamlessflow.client import Client
from seamlessflow.contracts import RoleAssigned, RunState, Service

from .console import make_console
from .nodes import NodeArgument, NodeView, one_node, since_words
from .options import NatsUrl
from .run_location import any_address

Assignments = list[tuple[Record, RoleAssigned]]


def why(node: NodeArgument, nats: NatsUrl = None, last: Annotated[int, typer.Option("--last", min=0)] = 10) -> None:
    """Why a node does what it does: its lease with the reason, earlier ones, what it waits for, and what would change it."""

    async def look() -> tuple[NodeView, Assignments, RunState | None]:
        async with Client.open(any_address(nats)) as client:
            view = await one_node(client, node)
            run = None if view.lease is None else view.lease.run
            state = None if run is None else await client.run_state(run)
            return view, await client.assignments(node), state

    view, assignments, state = asyncio.run(look())
    console = make_console()
    for line in why_lines(view, assignments[-last:] if last else [], state, time.time()):
        console.print(escape(line))


def why_lines(view: NodeView, assignments: Assignments, state: RunState | None, now: float) -> list[str]:
    """The whole answer."""
    lines = [_now(view, now)]
    known = view.why_never if view.lease is None else view.lease.reason
    lines += [f"  {said}" for said in view.why() if said != known]
    if state is not None and state.reason:
        lines.append(f"  run {view.lease.run if view.lease else ''} waits: {state.reason}")
    if assignments:
        lines.append("before, newest last:")
        lines += [f"  {assignment_line(record.time, event)}" for record, event in assignments]
    changes = what_would_change(view)
    return lines + (["what would change it:", *(f"  {change}" for change in changes)] if changes else [])


def _now(view: NodeView, now: float) -> str:
    lease = view.lease
    if lease is None:
        return f"{view.name} holds nothing and never did" + (f": {view.why_never}" if view.why_never is not None else "")
    for_run = "nothing" if lease.run is None else f"{lease.role.value} for run {lease.run}"
    parts = [
        f"{view.name}: {for_run}",
        *([f"tags {' '.join(lease.tags)}"] if lease.tags else []),
        *([f"gang {' '.join(lease.gang)}"] if lease.gang else []),
        *(["the run's trainer"] if lease.trainer else []),
        f"epoch {lease.epoch}",
        *since_words(lease, now),
    ]
    return ", ".join(parts) + (f": {lease.reason}" if lease.reason else "")


def assignment_line(at: float, event: RoleAssigned) -> str:
    """One assignment with its time on this machine's clock."""
    gang = f" with gang {' '.join(event.gang)}" if event.gang else ""
    tags = f" ({' '.join(event.tags)})" if event.tags else ""
    when = datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")
    return f"{when} {event.run} epoch {event.epoch}: {event.role.value}{tags}{gang}: {event.reason}"


def what_would_change(view: NodeView) -> list[str]:
    """Commands and deeds."""
    name, order = view.name, view.order
    said = [f"seamlessflow drain --undo {name}: it is drained"] if order.drain else []
    said += [f"seamlessflow tag {name} {tag}: {tag} was taken away from it by hand" for tag in order.remove]
    said += [f"seamlessflow untag {name} {tag}: {tag} was given to it by hand" for tag in order.add]
    said += [
        f"seamlessflow untag {name} {tag}: a rule of run {', '.join(runs)} gives it to such hardware"
        for tag, runs in view.ruled.items()
        if tag not in (*order.add, *order.remove, *view.announced)
    ]
    said += [f"end one of {pair}, or give one a SEAMLESSFLOW_NODE of its own" for pair in view.conflicts.values()]
    if not view.processes:
        said.append("start its services again: nothing of it is there")
    elif view.lease is None or view.lease.run is None:
        taken = view.why_never is not None and bool(order.remove)
        said += [] if order.drain or taken else ["a run that needs such a node: seamlessflow train"]
    elif not order.drain:
        said.append(f"seamlessflow drain {name}: takes it out of run {view.lease.run}")
        services = {process.service for process in view.processes}
        if Service.ROLLOUT_WORKER in services and Service.TRAINER in services:
            said.append(f"seamlessflow untag {name} train (or rollout): it would only sample (or only train)")
    return said
