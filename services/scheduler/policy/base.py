"""What every policy is: a pure function from the nodes of one run and its demand to an assignment for each node.

Always true of a policy: exactly one assignment per node, at most one node with ``trainer``, a reason for each. The same
nodes and the same demand give the same answer, so nothing changes hands unless something changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from seamlessflow.contracts import Lease, Role, Service

ROLLOUT, TRAIN = "rollout", "train"
"""Capabilities that processes announce."""


@dataclass(frozen=True, slots=True)
class Process:
    """One service on a node."""

    capabilities: frozenset[str]
    gone_since: float | None = None
    """When its presence ended; None: it is there. It may come back within the grace, so its node keeps its roles."""
    is_quiet: bool = False
    """It has not renewed its presence for a while, and may be dead."""
    epoch: int = 0
    """A trajectory-manager's: of the newest lease that it obeys."""
    run: str | None = None
    """A trajectory-manager's: the run whose model it has."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine or a slice of it, as the scheduler sees it now."""

    name: str
    processes: Mapping[str, Process] = field(default_factory=dict)
    """By service."""
    lease: Lease | None = None
    lease_since: float = 0.0
    """When the lease was written (or first seen by this scheduler)."""
    holding: frozenset[str] = frozenset()
    """Services that said they took the device and did not say that they let go."""

    def has(self, capability: str) -> bool:
        """Whether one of its processes, there or away for a moment, can do this."""
        return any(capability in process.capabilities for process in self.processes.values())

    def can(self, capability: str) -> bool:
        """Whether one of its processes can do this now."""
        return any(capability in p.capabilities and p.gone_since is None for p in self.processes.values())

    def serves_as(self, service: Service) -> bool:
        """Whether it is a serving node of this kind. One lease holds one role: a device or a manager comes first."""
        taken = self.is_device or (service is not Service.TRAJECTORY_MANAGER and Service.TRAJECTORY_MANAGER in self.processes)
        return service.value in self.processes and not taken

    @property
    def num_roles(self) -> int:
        """How many roles its processes would need; more than 1 is a deployment mistake."""
        serving = (Service.TRAJECTORY_MANAGER, Service.AGENT_RUNNER)
        return self.is_device + sum(service in self.processes for service in serving)

    @property
    def is_device(self) -> bool:
        return self.has(ROLLOUT) or self.has(TRAIN)


@dataclass(frozen=True, slots=True)
class Demand:
    """What one run wants of the fleet."""

    run: str
    policy: str
    wants_train: bool = False
    """A batch waits, and no step has answered it."""
    envs: tuple[str, ...] = ()
    num_shards: int = 1
    tags: tuple[str, ...] = (ROLLOUT,)
    """Tags of the generations its agents ask for."""
    num_buckets: int = 1


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a node is to do, and why. ``hand_back``: on losing rollout, generations go to other nodes."""

    node: str
    run: str | None
    role: Role
    reason: str
    tags: tuple[str, ...] = ()
    trainer: bool = False
    hand_back: bool = False
    never_rolls_out: bool = False
    """For the whole run; so it owns no affinity bucket."""
    buckets: tuple[int, ...] = ()
    """Affinity buckets that the node owns, whatever its role is now; filled in by the plan, no policy's matter."""


Policy = Callable[[Sequence[Node], Demand, float], list[Assignment]]


def trainer_of(fleet: Iterable[Node], run: str) -> Node | None:
    """The node whose trainer process is the run's: the one that is already, else one that cannot roll out, else the first.

    None when no node can train. A trainer that is away for a moment keeps its place.
    """
    able = [node for node in fleet if node.has(TRAIN)]
    return min(able, key=lambda node: (not _is_trainer(node, run), node.has(ROLLOUT), node.name), default=None)


def _is_trainer(node: Node, run: str) -> bool:
    return node.lease is not None and node.lease.run == run and node.lease.trainer


def rollout(node: Node, demand: Demand, reason: str, *, trainer: bool = False) -> Assignment:
    """Sample for the run; a node without that capability idles and says so."""
    if node.has(ROLLOUT):
        return Assignment(node.name, demand.run, Role.ROLLOUT, reason, demand.tags, trainer)
    return idle(node, demand, "it cannot roll out, and nothing else is to do", trainer=trainer)


def train(node: Node, demand: Demand, reason: str, *, hand_back: bool = False) -> Assignment:
    """Hold the device for optimiser steps."""
    return Assignment(node.name, demand.run, Role.TRAIN, reason, trainer=True, hand_back=hand_back)


def idle(node: Node, demand: Demand, reason: str, *, trainer: bool = False, hand_back: bool = False) -> Assignment:
    """Belong to the run and leave the device alone."""
    return Assignment(node.name, demand.run, Role.IDLE, reason, trainer=trainer, hand_back=hand_back)
