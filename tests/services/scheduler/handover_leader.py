"""The scheduler of the hand-over's world: the pure parts of the real one, as they are.

News come to it late, twice and out of order; it may die between a lease and its word; its clock may be wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seamlessflow.contracts import Event
from seamlessflow_scheduler.admission.measurements import RunMeasurements
from seamlessflow_scheduler.admission.run_state import RunProgress, holding
from seamlessflow_scheduler.fleet_monitor import HeartbeatMonitor
from seamlessflow_scheduler.fleet_state import FleetState, HeldLease
from seamlessflow_scheduler.leases import next_lease, role_assigned
from seamlessflow_scheduler.placement.plan import FleetPlan, next_plan
from seamlessflow_scheduler.policy import Node
from seamlessflow_scheduler.run import demand_of
from tests.services.scheduler.scheduler_world import RUN

if TYPE_CHECKING:
    from tests.services.scheduler.handover_world import World


class Leader:
    """A scheduler that leads. ``ahead_seconds``: how wrong its clock is."""

    def __init__(self, world: World, ahead_seconds: float) -> None:
        self.world, self.ahead_seconds = world, ahead_seconds
        self.fleet, self.pulse = FleetState(10.0), HeartbeatMonitor(2.5)
        self.progress, self.measurements = RunProgress(RUN, world.config), RunMeasurements(RUN, world.config)
        for event, at in world.history:
            self.take_in(event, at)
        self.unheard: list[tuple[Event, float]] = []
        self.book: dict[str, HeldLease] = {}
        self.load()
        self.look()
        self.fleet.remember({name: held.lease for name, held in self.book.items()}, self.now)
        for name, held in self.book.items():
            if held.lease.run == RUN:
                world.publish(role_assigned(RUN, name, held.lease))

    @property
    def now(self) -> float:
        return self.world.time + self.ahead_seconds

    def load(self) -> None:
        known, self.book = self.book, {}
        for name, (lease, revision) in self.world.leases.items():
            before = known.get(name)
            since = before.since if before is not None and before.revision == revision else self.now
            self.book[name] = HeldLease(lease, revision, since)

    def look(self) -> None:
        there = list(self.world.presence())
        revisions = {(s.node, s.service): revision for s, revision in there}
        quiet = self.pulse.observe(revisions, self.world.time)
        self.fleet.observe([s for s, _ in there], self.now, quiet, dict(self.world.orders))

    def take_in(self, event: Event, at: float) -> None:
        self.progress.apply(event, at)
        self.measurements.apply(event, at)

    def hear(self, place: int = 0, *, again: bool = False) -> None:
        """One of the news that wait, not always the oldest, and maybe not for the last time."""
        if self.unheard:
            place %= len(self.unheard)
            self.world.is_in_order &= place == 0
            event, at = self.unheard[place]
            if not again:
                del self.unheard[place]
            self.take_in(event, at)

    def nodes(self) -> list[Node]:
        return self.fleet.nodes(self.book, holding([self.progress]))

    def plan(self) -> FleetPlan:
        return next_plan(self.nodes(), self.book, [demand_of(self.world.config, self.progress, self.measurements)], self.now)

    def tick(self, most: int = 99, *, dumb: bool = False) -> int:
        """Write what should change, at most so many leases. dumb: it dies between the lease and the word."""
        changes = self.plan().changes[:most]
        for done, assignment in enumerate(changes):
            held = self.book.get(assignment.node)
            lease = next_lease(assignment, held, self.now)
            if not self.world.write(assignment.node, lease, held.revision if held is not None else 0):
                self.load()
                return done
            self.book[assignment.node] = HeldLease(lease, self.world.leases[assignment.node][1], self.now)
            if not dumb:
                self.world.publish(role_assigned(RUN, assignment.node, lease))
        return len(changes)
