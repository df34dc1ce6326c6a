"""The scheduler's own pure code in virtual time: progress, decisions, measurements and plan, fed with events without a bus.

It replaces ``seamlessflow_scheduler.run`` and ``service`` with their bus: applies an event, publishes due events, observes
the fleet, and writes the leases that changed. No decision is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import EpisodeOpened, Event, Lease, NodeStatus, Service, TaskSubmitted
from seamlessflow_scheduler.admission.decisions import next_events
from seamlessflow_scheduler.admission.measurements import RunMeasurements
from seamlessflow_scheduler.admission.run_state import RunProgress, holding
from seamlessflow_scheduler.fleet_state import FleetState, HeldLease
from seamlessflow_scheduler.leases import next_lease, role_assigned
from seamlessflow_scheduler.placement.plan import FleetPlan, next_plan
from seamlessflow_scheduler.policy import Assignment, Demand, Node
from seamlessflow_scheduler.run import demand_of

from .constants import GONE_SECONDS

ENV = "load"


class VirtualScheduler:
    """``opened`` and ``leased`` are told what it decides."""

    def __init__(
        self,
        run: str,
        config: RunConfig,
        *,
        opened: Callable[[EpisodeOpened], None],
        leased: Callable[[str, Lease], None],
        told: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self.run, self.config = run, config
        self.progress, self.measurements = RunProgress(run, config), RunMeasurements(run, config)
        self.fleet = FleetState(GONE_SECONDS)
        self.leases: dict[str, HeldLease] = {}
        self.num_plans = 0
        self._statuses: dict[tuple[str, str], NodeStatus] = {}
        self._opened, self._leased, self._told = opened, leased, told
        for service in (Service.TRAJECTORY_MANAGER, Service.AGENT_RUNNER):
            self.arrives(status_of(f"serving-{service.value}", service))

    def arrives(self, *statuses: NodeStatus) -> None:
        """Processes announce themselves."""
        self._statuses.update({(each.node, each.service): each for each in statuses})

    def leaves(self, node: str) -> None:
        """All its presences have ended."""
        self._statuses = {key: each for key, each in self._statuses.items() if key[0] != node}

    def submit(self, tasks: Iterable[tuple[str, str]], now: float) -> None:
        """Users publish tasks, each with its prompt; their consequences are published with the next event."""
        for task, prompt in tasks:
            self.progress.apply(TaskSubmitted(run=self.run, task=task, env=ENV, prompt=prompt), now)

    def take_in(self, event: Event, now: float) -> None:
        """An event, and whatever is due after it."""
        self._apply(event, now)
        self.advance(now)

    def advance(self, now: float) -> None:
        """Publish due events until none is left."""
        while due := next_events(self.progress):
            self._publish(due, now)

    def hear(self, event: Event, now: float) -> None:
        """An event alone; its consequences are for ``publish_slice``, as in the real ``ScheduledRun``."""
        self._apply(event, now)

    def publish_slice(self, now: float, most: int) -> bool:
        """Publish some due events; False: none is due."""
        due = next_events(self.progress, most=most)
        self._publish(due, now)
        return bool(due)

    def _publish(self, due: Iterable[Event], now: float) -> None:
        for event in due:
            self._apply(event, now)
            if isinstance(event, EpisodeOpened):
                self._opened(event)

    def _apply(self, event: Event, now: float) -> None:
        self.progress.apply(event, now)
        self.measurements.apply(event, now)
        self._told(event)

    def look(self, now: float) -> None:
        """Look at the fleet, plan, and write the leases that changed."""
        self.write(self.plan(now), now)

    def write(self, plan: FleetPlan, now: float) -> None:
        """Make what a plan changes the leases that stand."""
        for assignment in plan.changes:
            self._write(assignment, now)

    def plan(self, now: float) -> FleetPlan:
        """One decision: what a tick of the scheduler does besides reading and writing buckets."""
        self.num_plans += 1
        self.fleet.observe(self._statuses.values(), now)
        return next_plan(self.nodes(), self.leases, [self.demand()], now)

    def nodes(self) -> list[Node]:
        """The fleet with leases and devices."""
        return self.fleet.nodes(self.leases, holding([self.progress]))

    def demand(self) -> Demand:
        """What the run wants of the fleet now."""
        return demand_of(self.config, self.progress, self.measurements)

    def _write(self, assignment: Assignment, now: float) -> None:
        held = self.leases.get(assignment.node)
        lease = next_lease(assignment, held, now)
        self.leases[assignment.node] = HeldLease(lease, held.revision + 1 if held is not None else 1, now)
        self._apply(role_assigned(self.run, assignment.node, lease), now)
        self._leased(assignment.node, lease)


def status_of(node: str, service: Service, *capabilities: str) -> NodeStatus:
    """The presence of one process."""
    return NodeStatus(node=node, service=service.value, instance="1", capabilities=capabilities, pid=1)
