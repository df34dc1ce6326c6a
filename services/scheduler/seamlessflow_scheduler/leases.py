"""Leases of all nodes and the one way they change: compare-and-set with the next epoch, a poke to the node, RoleAssigned.

A lease counts once it is written; its RoleAssigned in the run's journal is for readers of the journal. So a tick waits only a
moment for a journal (``PATIENCE_SECONDS``), and one that does not answer gets the rest later: in order for each run, without
delaying other runs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from seamlessflow.bus.base import Bus
from seamlessflow.codec import pack_record, unpack_record
from seamlessflow.contracts import Lease, Role, RoleAssigned
from seamlessflow.contracts.routes import HINT_POKE, LEASES_BUCKET
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.errors import MalformedMessage, SequenceMismatch, Unavailable
from seamlessflow.runtime import Journal

from .fleet_state import HeldLease
from .policy import Assignment

log = structlog.get_logger()

PATIENCE_SECONDS = 1.0
"""How long ``RoleEventOutbox.publish`` waits until its event is stored."""


class RoleEventOutbox:
    """RoleAssigned events that wait for their run's journal. ``store`` appends one; events of one run are stored in order."""

    def __init__(self, store: Callable[[RoleAssigned], Awaitable[object]]) -> None:
        self._store = store
        self._due: dict[str, deque[RoleAssigned]] = {}
        self._publishing: dict[str, asyncio.Task[None]] = {}

    async def publish(self, event: RoleAssigned) -> None:
        """Return once the event is stored or refused, after PATIENCE_SECONDS, or at once if its journal is behind already."""
        self._due.setdefault(event.run, deque()).append(event)
        if event.run not in self._publishing:
            self._publishing[event.run] = publishing = asyncio.create_task(self._publish_due(event.run))
            await asyncio.wait((publishing,), timeout=PATIENCE_SECONDS)

    async def end(self) -> None:
        """Stop publishing; the next leader finds the unpublished events (``LeaseBook.republish``)."""
        publishing = [*self._publishing.values()]
        for task in publishing:
            task.cancel()
        await asyncio.gather(*publishing, return_exceptions=True)

    async def _publish_due(self, run: str) -> None:
        due = self._due[run]
        try:
            while due:
                event = due.popleft()
                try:
                    await self._store(event)
                except (SequenceMismatch, Unavailable) as wrong:  # the lease stands
                    log.warning("lease.unsaid", node=event.node, run=run, epoch=event.epoch, reason=str(wrong))
        finally:
            del self._publishing[run], self._due[run]


class LeaseBook:
    """All leases, read once and again after a refusal, as the leading scheduler is the only writer."""

    def __init__(self, bus: Bus, journal: Journal) -> None:
        self._bus, self._journal = bus, journal
        self._outbox = RoleEventOutbox(journal.publish)
        self.leases: dict[str, HeldLease] = {}

    async def load(self, now: float) -> None:
        """Read all leases. Epochs go on from there, however often schedulers are replaced."""
        entries = await (await self._bus.kv(LEASES_BUCKET)).entries()
        known = self.leases
        self.leases = {}
        for entry in entries:
            if "." not in entry.key:  # the leader's key is no node
                before = known.get(entry.key)
                try:
                    lease = unpack_record(Lease, entry.value)
                except MalformedMessage as wrong:  # it counts for nothing, and the next lease of the node replaces it
                    log.warning("lease.unreadable", node=entry.key, reason=str(wrong))
                    epoch = max(entry.revision, before.lease.epoch if before is not None else 0)  # a write for each epoch
                    lease = Lease(run=None, role=Role.IDLE, epoch=epoch)
                since = before.since if before is not None and before.revision == entry.revision else now
                self.leases[entry.key] = HeldLease(lease, entry.revision, since)

    async def write(self, assignment: Assignment, now: float) -> None:
        """Write an assignment as the node's lease and publish it. Raises SequenceMismatch if it changed: load again."""
        held = self.leases.get(assignment.node)
        lease = next_lease(assignment, held, now)
        bucket = await self._bus.kv(LEASES_BUCKET)
        if held is None:
            revision = await bucket.create(assignment.node, pack_record(lease))
        else:
            revision = await bucket.update(assignment.node, pack_record(lease), held.revision)
        self.leases[assignment.node] = HeldLease(lease, revision, now)
        await self._bus.hint(HINT_POKE.format(node=assignment.node), b"")
        log.info("lease.written", node=assignment.node, **lease.model_dump(mode="json"))
        former = held.lease.run if held is not None else None
        if former is not None and former != lease.run and journal_stream(former) in await self._bus.stream_names():
            await self._outbox.publish(role_assigned(former, assignment.node, lease))
        if lease.run is not None:
            await self._outbox.publish(role_assigned(lease.run, assignment.node, lease))

    async def end(self) -> None:
        """Stop publishing RoleAssigned."""
        await self._outbox.end()

    async def republish(self, run: str) -> None:
        """Publish the assignments of a run that an earlier scheduler wrote and did not publish before it died."""
        for node, held in self.leases.items():
            if held.lease.run == run:
                published = await self._journal.last(RoleAssigned, run, node=node)
                if published is None or published.epoch < held.lease.epoch:
                    await self._outbox.publish(role_assigned(run, node, held.lease))


def next_lease(assignment: Assignment, held: HeldLease | None, now: float) -> Lease:
    """The lease that an assignment gives a node, under the next epoch."""
    return Lease(
        run=assignment.run,
        role=assignment.role,
        tags=assignment.tags,
        buckets=assignment.buckets,
        epoch=held.lease.epoch + 1 if held is not None else 1,
        since=now,
        reason=assignment.reason,
        trainer=assignment.trainer,
        gang=assignment.gang,
        lent=assignment.lent,
        hand_back=assignment.hand_back,
        keeps=assignment.keeps,
        let_go=assignment.let_go,
    )


def role_assigned(run: str, node: str, lease: Lease) -> RoleAssigned:
    """The event of a lease for a run: its own lease, or that the node was taken from it."""
    gone = run != lease.run
    return RoleAssigned(
        run=run,
        node=node,
        epoch=lease.epoch,
        role=lease.role.IDLE if gone else lease.role,
        tags=() if gone else lease.tags,
        reason=f"given to run {lease.run}" if gone and lease.run is not None else lease.reason,
        gang=() if gone else lease.gang,
        left=gone,
    )
