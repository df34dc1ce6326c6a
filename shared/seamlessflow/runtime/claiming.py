"""One process, one name: who starts under the node and service of another that is there, does not start."""

from __future__ import annotations

import asyncio
import time

import structlog

from ..bus.base import Bus, Entry
from ..codec import unpack_record
from ..contracts import NodeStatus
from ..contracts.routes import NODES_BUCKET
from ..errors import ConfigError, SeamlessFlowError
from ..instances import is_dead
from .presence import GAP_SECONDS

log = structlog.get_logger()

LOOK_SECONDS = 0.1
SPARE_SECONDS = 1.0
"""How long the server may take besides."""


async def claim(bus: Bus, ours: NodeStatus) -> None:
    """Make sure that nobody else lives under our name, before anything is done in it. Raises ConfigError.

    Another's presence that nobody renews for ``GAP_SECONDS`` is that of a process which died, as a rule our own former life.
    One of this machine that is dead beyond doubt is not waited for. Where it cannot be found out the name is taken to be free.
    """
    try:
        async with asyncio.timeout(GAP_SECONDS + SPARE_SECONDS):
            found = await _living(bus, ours)
    except (TimeoutError, SeamlessFlowError) as wrong:  # a bucket that is not made yet holds nobody's name
        log.info("name.unclaimed", node=ours.node, reason=str(wrong))
        return
    if found is not None:
        raise ConfigError(
            f"node {found.node} has a {found.service} already: instance {found.instance} (pid {found.pid}), which is there. "
            "End that one, or give this one a SEAMLESSFLOW_NODE of its own"
        )


async def _living(bus: Bus, ours: NodeStatus) -> NodeStatus | None:
    """Who lives under our name, after watching its presence; None: nobody."""
    bucket, key = await bus.kv(NODES_BUCKET), f"{ours.node}.{ours.service}"
    first = newest = await bucket.get(key)
    if first is None or not _may_live(other := unpack_record(NodeStatus, first.value), ours):
        return None
    log.info("name.watched", node=ours.node, held_by=other.instance, longest_seconds=GAP_SECONDS)
    until = time.monotonic() + GAP_SECONDS
    while _is_same(newest, first) and time.monotonic() < until:
        await asyncio.sleep(LOOK_SECONDS)
        newest = await bucket.get(key)
    return None if newest is None or _is_same(newest, first) else unpack_record(NodeStatus, newest.value)


def _is_same(newest: Entry | None, first: Entry) -> bool:
    return newest is not None and newest.revision == first.revision


def _may_live(other: NodeStatus, ours: NodeStatus) -> bool:
    """Whether it is not ourselves, nor a process of this very machine that is dead."""
    return other.instance != ours.instance and not is_dead(other.instance, other.pid)
