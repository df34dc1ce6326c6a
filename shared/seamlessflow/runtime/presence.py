"""Presence and leases: a process announces itself, and reads what its node may do now.

Both are current state in key-value buckets, re-read every second; a poke only makes the next read come sooner.

A process that must act alone (a trajectory-manager on its shards) checks two things before each act: since when its presence
was renewed without a gap (``unbroken_since``), and whether its lease was read after that (``looked_at``). The scheduler
reassigns nothing that the holder of an unbroken presence has.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from seamlessflow.bus.base import Bus, Entry, KeyValue
from seamlessflow.codec import pack_record, unpack_record
from seamlessflow.contracts import Lease, NodeStatus
from seamlessflow.contracts.routes import HINT_POKE, LEASES_BUCKET, NODES_BUCKET
from seamlessflow.errors import ConfigError, SeamlessFlowError
from seamlessflow.local.instance_names import is_dead

log = structlog.get_logger()

PRESENCE_SECONDS = 1.0
"""How often a process renews its presence."""
PRESENCE_LEAST_SECONDS = 0.25
"""A busy process changes its state with every message: it is renewed no sooner than this."""
PRESENCE_TTL_SECONDS = 5
"""After this long without renewal it counts as gone."""
HOLDER_SECONDS = 0.5
"""How often a process renews it that holds what others could take over."""
GAP_SECONDS = 2.0
"""Longest gap between two renewals after which no other process can have taken over. The scheduler waits for longer."""
LEASE_POLL_SECONDS = 1.0
"""How long a lost poke may go unnoticed."""
GOODBYE_SECONDS = 1.0
"""How long a goodbye may take. One that was not heard is made up for: presence, locks and deliveries run out by themselves."""


class Presence:
    """Renews this process's NodeStatus. Change it with ``update``."""

    def __init__(self, bus: Bus, status: NodeStatus) -> None:
        self._bus = bus
        self.status = status
        self.every_seconds = PRESENCE_SECONDS
        self._wake = asyncio.Event()
        self._renewed_at: float | None = None
        """When the newest renewal that was stored began."""
        self._unbroken_since = 0.0

    @property
    def unbroken_since(self) -> float:
        """Since when (monotonic seconds) it was renewed without a gap; inf: there is one now. 0 when it was never run."""
        if self._renewed_at is not None and time.monotonic() - self._renewed_at > GAP_SECONDS:
            return math.inf
        return self._unbroken_since

    def update(self, **changed: object) -> None:
        """Change fields of the status and renew it soon. Unchanged values cost nothing."""
        status = self.status.model_copy(update=changed)
        if status != self.status:
            self.status = status
            self._wake.set()

    async def run(self) -> None:
        """Renew until cancelled, then delete the entry."""
        bucket: KeyValue | None = None
        key = f"{self.status.node}.{self.status.service}"
        try:
            while True:
                self._wake.clear()  # before the put: a change during it is published next
                try:
                    # Where permissions are on, only the scheduler can make the bucket: it may not be there yet.
                    bucket = bucket or await self._bus.kv(NODES_BUCKET)
                    began = time.monotonic()
                    await bucket.put(key, pack_record(self.status), ttl_seconds=PRESENCE_TTL_SECONDS)
                    ended = time.monotonic()
                    if self._renewed_at is None or ended - self._renewed_at > GAP_SECONDS:
                        self._unbroken_since = ended
                    self._renewed_at = began
                except SeamlessFlowError as wrong:
                    log.warning("presence.failed", reason=str(wrong))
                await asyncio.sleep(PRESENCE_LEAST_SECONDS)
                with suppress(TimeoutError):
                    # Not wait_for: before Python 3.12 it swallows a cancellation that meets the event.
                    async with asyncio.timeout(self.every_seconds - PRESENCE_LEAST_SECONDS):
                        await self._wake.wait()
        finally:
            if bucket is not None:
                with suppress(TimeoutError, SeamlessFlowError):
                    async with asyncio.timeout(GOODBYE_SECONDS):
                        await bucket.delete(key)


async def read_lease(bus: Bus, node: str) -> Lease | None:
    """What the node may do now; None when the scheduler gave it nothing yet."""
    entry = await (await bus.kv(LEASES_BUCKET)).get(node)
    return None if entry is None else unpack_record(Lease, entry.value)


class LeaseWatch:
    """Calls ``on_lease`` with every lease whose epoch is higher than the last one seen, in order, one at a time."""

    def __init__(self, bus: Bus, node: str, on_lease: Callable[[Lease], Awaitable[None]]) -> None:
        self._bus, self._node, self._on_lease = bus, node, on_lease
        self._poked = asyncio.Event()
        self._epoch = -1
        self.looked_at = 0.0
        """When (monotonic seconds) the newest read began whose lease was obeyed."""

    def look_soon(self) -> None:
        """Read the lease again without waiting for the time."""
        self._poked.set()

    async def run(self) -> None:
        """Watch until cancelled. A scheduler or server that is away changes nothing: the node keeps what it has."""

        async def on_poke(payload: bytes) -> None:
            self._poked.set()

        unsubscribe = await self._bus.on_hint(HINT_POKE.format(node=self._node), on_poke)
        try:
            while True:
                await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LEASE_POLL_SECONDS):
                        await self._poked.wait()
                self._poked.clear()
        finally:
            await unsubscribe()

    async def _look(self) -> None:
        began = time.monotonic()
        try:
            lease = await read_lease(self._bus, self._node)
        except SeamlessFlowError as wrong:
            log.warning("lease.unreadable", reason=str(wrong))
            return
        if lease is not None and lease.epoch > self._epoch:
            self._epoch = lease.epoch
            await self._on_lease(lease)
        self.looked_at = began


# One process, one name: who starts under the node and service of another that is there, does not start.


LOOK_SECONDS = 0.1
SPARE_SECONDS = 1.0
"""How long the server may take besides."""


async def claim(bus: Bus, ours: NodeStatus) -> None:
    """Make sure that no other live process has our name, before we use it. Raises ConfigError.

    A presence that is not renewed for ``GAP_SECONDS`` is that of a dead process, usually our own predecessor.
    One of this machine that is dead beyond doubt is not waited for. Where it cannot be found out the name is taken to be free.
    """
    try:
        async with asyncio.timeout(GAP_SECONDS + SPARE_SECONDS):
            found = await _living(bus, ours)
    except (TimeoutError, SeamlessFlowError) as wrong:  # a bucket that is not made yet holds no name
        log.info("name.unclaimed", node=ours.node, reason=str(wrong))
        return
    if found is not None:
        raise ConfigError(
            f"node {found.node} has a {found.service} already: instance {found.instance} (pid {found.pid}), which is there. "
            "End that one, or give this one a SEAMLESSFLOW_NODE of its own"
        )


async def _living(bus: Bus, ours: NodeStatus) -> NodeStatus | None:
    """The live process with our name, after watching its presence; or None."""
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
