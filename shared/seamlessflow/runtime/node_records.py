"""Records of nodes in the buckets of the fleet, read and changed one entry at a time.

A value that cannot be read concerns one node: it is left out and reported, and the rest of the fleet goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from seamlessflow.bus.base import Bus
from seamlessflow.codec import pack_record, unpack_record
from seamlessflow.contracts import NodeOrder
from seamlessflow.contracts.base import Record
from seamlessflow.contracts.routes import LEASES_BUCKET, NODES_BUCKET, ORDERS_BUCKET
from seamlessflow.errors import MalformedMessage, SequenceMismatch

Unreadable = dict[str, list[str]]
"""Reasons of unreadable entries, by node; ``read_records`` fills it in."""
R = TypeVar("R", bound=Record)

_WORDS = {ORDERS_BUCKET: "order", LEASES_BUCKET: "lease"}
MOST_CHARACTERS = 200


async def read_records(bus: Bus, bucket: str, kind: type[R], unreadable: Unreadable | None) -> dict[str, R]:
    """All that can be read of NODES, LEASES or ORDERS, by key."""
    found: dict[str, R] = {}
    for entry in await (await bus.kv(bucket)).entries():
        node, _, service = entry.key.partition(".")
        if service and bucket != NODES_BUCKET:  # the leader's key is no node
            continue
        try:
            found[entry.key] = unpack_record(kind, entry.value)
        except MalformedMessage as wrong:
            if unreadable is not None:
                reason = " ".join(str(wrong).split())[:MOST_CHARACTERS]
                unreadable.setdefault(node, []).append(f"{service or _WORDS[bucket]} unreadable: {reason}")
    return found


async def change_order(bus: Bus, node: str, change: Callable[[NodeOrder], NodeOrder]) -> NodeOrder:
    """Compare and set until it is done; returns what stands then. What cannot be read is no order, and is overwritten."""
    bucket = await bus.kv(ORDERS_BUCKET)
    while True:
        entry, before = await bucket.get(node), None
        if entry is not None:
            with suppress(MalformedMessage):
                before = unpack_record(NodeOrder, entry.value)
        after = change(before or NodeOrder())
        if after == (NodeOrder() if entry is None else before):
            return after
        with suppress(SequenceMismatch):
            if entry is None:
                await bucket.create(node, pack_record(after))
            else:
                await bucket.update(node, pack_record(after), entry.revision)
            return after
