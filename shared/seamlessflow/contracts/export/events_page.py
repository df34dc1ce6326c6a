"""docs/events.md: publisher and handlers of every event, and the meaning of every field."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import groupby
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from seamlessflow.contracts import fleet
from seamlessflow.contracts.arrays import Float32s, Int32s
from seamlessflow.contracts.base import Record, Service
from seamlessflow.contracts.routes import (
    BUCKETS,
    HINT_POKE,
    HINT_WEIGHTS,
    LEASES_BUCKET,
    NODES_BUCKET,
    ORDERS_BUCKET,
    QUEUES,
    READERS_BUCKET,
    ROUTES,
    RUNS_BUCKET,
    WEIGHTS_BUCKET,
    Route,
)
from seamlessflow.contracts.streams import consumers_of

from .field_docs import meaning, member_meanings

_HEAD = """\
# Events

Generated from `seamlessflow.contracts` by `./task schemas`; do not edit.

Everything any service says is an event: published once on its subject, stored in the run's journal `J_<run>`, and
copied by the server into the queue of every service that must act on it. An event is *once* when a second one on the
same subject is refused by the server, whoever says it, and *by claim* when the server refuses it unless the publisher's
claim (TrainerClaimed, or what was appended under it) is still the newest of the run. The message id makes repeats of one
fact harmless; the run's name is put in front of it. Payloads are msgpack maps with the fields below and `event`
(`CallRequested/1`), or JSON with the header `Content-Type: application/json`. JSON Schemas are in [schemas/](../schemas).
"""

_BUCKET_RECORDS: dict[str, tuple[str, str, str]] = {
    NODES_BUCKET: ("`<node>.<service>`", "NodeStatus", "every process, for itself; expires unless renewed"),
    LEASES_BUCKET: ("`<node>`", "Lease", "the scheduler"),
    WEIGHTS_BUCKET: ("`<run>`", "WeightsHead", "the trainer of the run"),
    RUNS_BUCKET: ("`<run>`", "RunState", "the scheduler"),
    ORDERS_BUCKET: ("`<node>`", "NodeOrder", "users"),
    READERS_BUCKET: (
        "`<run>.reads.<id>`, `<run>.missed.<reader>`",
        "WeightsReading",
        "who reads weights, for itself; expires unless renewed",
    ),
}
_STATES: tuple[type[Record], ...] = (
    fleet.NodeStatus,
    fleet.Lease,
    fleet.WeightsHead,
    fleet.RunState,
    fleet.NodeOrder,
    fleet.WeightsReading,
)


def events_document() -> str:
    """The whole page."""
    sections = [_section(module, list(routes)) for module, routes in groupby(ROUTES, key=lambda r: r.event.__module__)]
    return "\n".join([_HEAD, *sections, _queues(), _state(), _shared_parts(), _choices()])


def _section(module: str, routes: list[Route]) -> str:
    title, _, rest = (inspect.getdoc(sys.modules[module]) or "").partition("\n")
    title = title.rstrip(".")
    lines = [f"## {title}", rest.strip(), ""] if rest.strip() else [f"## {title}", ""]
    lines += table(
        ("event", "subject", "stream", "said by", "acted on by", "limited", "message id"),
        [
            (
                f"[{route.event.__name__}](#{route.event.__name__.lower()})",
                f"`{route.subject}`",
                f"`{route.stream}`",
                _services(route.published_by),
                _services(consumers_of(route.event)) or "—",
                _limit(route),
                f"`{route.message_id}`",
            )
            for route in routes
        ],
    )
    for route in routes:
        lines += _record(route.event)
    return "\n".join(lines)


def _limit(route: Route) -> str:
    if route.claimed is not None:
        return "by claim"
    if route.once is None:
        return ""
    return "once" if route.once == route.subject else f"once over `{route.once}`"


def _services(services: tuple[Service, ...]) -> str:
    return "everybody" if set(services) == set(Service) else ", ".join(service.value for service in services)


def _record(kind: type[Record]) -> list[str]:
    name = kind.__name__
    lines = [f"### {name}", "", inspect.getdoc(kind) or "", ""]
    rows = [(f"`{field}`", _type(info), meaning(kind, field)) for field, info in kind.model_fields.items()]
    return lines + table(("field", "type", "meaning"), rows)


def _type(info: FieldInfo) -> str:
    default = "" if info.is_required() else f" = {_default(info)}"
    return f"`{_type_name(info.annotation)}{default}`"


def _default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=False)
    return str(value.value) if isinstance(value, Enum) else repr(value)


def _type_name(kind: Any) -> str:
    if kind in (Int32s, Float32s) or (isinstance(kind, type) and not get_args(kind)):
        return str(kind.__name__) if kind is not type(None) else "None"
    if get_origin(kind) in (Union, UnionType):
        return " | ".join(_type_name(part) for part in get_args(kind))
    if get_origin(kind) is Annotated:
        return _type_name(get_args(kind)[0])
    return str(kind).replace("typing.", "").replace("seamlessflow.contracts.", "").split("Annotated[")[0] or str(kind)


def _queues() -> str:
    rows = [
        (
            queue.service.value,
            f"`Q{queue.role}_<run>`",
            "<br>".join(f"`{pattern}`" for pattern in queue.filters),
            f"`{queue.consumer}`",
        )
        for queue in QUEUES
    ]
    return "\n".join(["## Queues: who must act on what", "", *table(("service", "stream", "sources", "consumer"), rows)])


def _state() -> str:
    """Buckets and hints."""
    rows = [(f"`{name}`", *_BUCKET_RECORDS[name]) for name in BUCKETS]
    lines = ["## Current state: key-value buckets", "", *table(("bucket", "key", "value", "written by"), rows)]
    lines += ["## Hints: core NATS, may be lost", ""]
    lines += table(
        ("subject", "said by", "meaning"),
        [
            (f"`{HINT_POKE}`", "scheduler", "re-read your lease now"),
            (f"`{HINT_WEIGHTS}`", "trainer", "re-read the weights' head now"),
            (
                "inbox in `CallRequested.reply`",
                "trajectory-manager",
                "the encoded CallAnswered, or an AnswerDelta",
            ),
        ],
    )
    return "\n".join(lines)


def _shared_parts() -> str:
    kinds = {part.__name__: part for route in ROUTES for part in _parts(route.event)}
    kinds |= {kind.__name__: kind for kind in _STATES}
    return "\n".join(["## Parts of events, and values of buckets", *_flat(_record(kinds[name]) for name in sorted(kinds))])


def _written() -> tuple[type[Record], ...]:
    """Everything that is ever written: events, and values of buckets."""
    return (*(route.event for route in ROUTES), *_STATES)


def _choices() -> str:
    kinds = {kind.__name__: kind for written in _written() for record in (written, *_parts(written)) for kind in _enums(record)}
    lines = ["## Named values", ""]
    for name in sorted(kinds):
        rows = [(f"`{value}`", text or "—") for value, text in member_meanings(kinds[name]).items()]
        lines += [f"### {name}", "", inspect.getdoc(kinds[name]) or "", "", *table(("value", "meaning"), rows)]
    return "\n".join(lines).rstrip() + "\n"


def _parts(kind: type[Record]) -> Iterator[type[Record]]:
    """Records inside a record, at any depth."""
    for inner in _mentioned(kind):
        if issubclass(inner, Record):
            yield inner
            yield from _parts(inner)


def _enums(kind: type[Record]) -> Iterator[type[Enum]]:
    for inner in _mentioned(kind):
        if issubclass(inner, Enum):
            yield inner


def _mentioned(kind: type[Record]) -> Iterator[type]:
    waiting = [info.annotation for info in kind.model_fields.values()]
    while waiting:
        each: Any = waiting.pop()
        waiting += get_args(each)
        if isinstance(each, type) and not get_args(each):
            yield each


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A Markdown table as lines, with an empty one after it."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    ruled = [cells[0], ["---"] * len(head), *cells[1:]]
    return [f"| {' | '.join(row)} |" for row in ruled] + [""]


def _flat(many: Iterator[list[str]]) -> list[str]:
    return ["", *(line for lines in many for line in lines)]
