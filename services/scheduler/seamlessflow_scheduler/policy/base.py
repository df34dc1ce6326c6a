"""What every policy is: a pure function from the nodes of one run and its demand to an assignment for each node.

Always true of a policy: exactly one assignment per node, at most one node with ``trainer``, a reason for each. The same
nodes, demand and time give the same answer, so nothing changes hands unless something changed.

A gang takes a step together: the *lead* (the node of the run's trainer) and *members*, whose trainer processes hold their
devices for it. ``policy.gang`` defines in which order they come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from seamlessflow.config.tag_rules import Rule
from seamlessflow.contracts import Hardware, Lease, Role, Service
from seamlessflow.contracts.tags import components, needed_tag

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
    """A trajectory-manager's: the run whose model it has. Others': that of ``versions``."""
    versions: tuple[int, ...] = ()
    """Where episodes keep their weights version: those that a rollout-worker has, or that episodes of an agent-runner keep."""


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
    """Services whose RoleTaken is not followed by RoleReleased."""
    tags: frozenset[str] = frozenset()
    """What it has besides what its processes announce: given by hand."""
    taken_away: frozenset[str] = frozenset()
    """Tags that its processes announce and that it has not: taken away by hand."""
    hardware: Hardware | None = None
    """Of its device; None: not known."""
    is_drained: bool = False
    """By hand: it hands back what it has and takes nothing new."""
    is_stuck: bool = False
    """Its trainer waits for a device that a silent process keeps."""
    _has: frozenset[str] = field(init=False, repr=False, compare=False)
    _can: frozenset[str] = field(init=False, repr=False, compare=False)
    """Capabilities of all its processes, and of those that are there: a decision over 1,000 nodes asks 10,000 times."""

    def __post_init__(self) -> None:
        processes = self.processes.values()
        has = frozenset[str]().union(*(process.capabilities for process in processes))
        all_there = all(process.gone_since is None for process in processes)
        here = has if all_there else frozenset[str]().union(*(p.capabilities for p in processes if p.gone_since is None))
        object.__setattr__(self, "_has", has)
        object.__setattr__(self, "_can", here)

    def has(self, capability: str) -> bool:
        """Whether one of its processes, there or away for a moment, can do this."""
        return capability in self._has

    def has_tag(self, component: str) -> bool:
        """Whether it has one component of a tag, announced or given by hand."""
        return component in self.tags or self.has(component)

    def can(self, capability: str) -> bool:
        """Whether one of its processes can do this now."""
        return capability in self._can

    def serves_as(self, service: Service) -> bool:
        """Whether it is a serving node of this kind. One lease holds one role: a device or a manager comes first."""
        if service.value not in self.processes or self.is_device:
            return False
        return service is Service.TRAJECTORY_MANAGER or Service.TRAJECTORY_MANAGER not in self.processes

    @property
    def num_roles(self) -> int:
        """How many roles its processes would need; more than 1 is a deployment mistake."""
        serving = (Service.TRAJECTORY_MANAGER, Service.AGENT_RUNNER)
        return self.is_device + sum(service in self.processes for service in serving)

    @property
    def is_quiet(self) -> bool:
        """Whether one of its processes is silent, and may hang."""
        return any(process.is_quiet for process in self.processes.values())

    @property
    def is_device(self) -> bool:
        """Whether it can roll out or train, now or when its processes are back."""
        return self.has(ROLLOUT) or self.has(TRAIN)


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured costs of a run (``admission.measurements``), from journal times alone. None: not known yet."""

    rollout_seconds: float | None = None
    """Node-seconds of rollout that one step's worth of useful groups costs."""
    train_seconds: float | None = None
    """Node-seconds of one step: its duration times its gang's size, for as many tokens as one step's rollout had lately."""
    reclaim_seconds: float | None = None
    """From the lease that takes a node out of rollout until its trainer holds the device."""
    lend_seconds: float | None = None
    """From the lease that takes a node out of training until its worker samples."""
    step_seconds: float | None = None
    """Node-seconds that the step in progress should take, by its tokens; None: none is."""
    step_nodes: int = 0
    """Nodes that take the step in progress, or took the last one; 0: none ever was."""
    step_began_at: float | None = None
    """When the step that is being taken began; None: none is."""
    step_taken_at: float | None = None
    """When the newest step was taken."""
    group_finished_at: float | None = None
    """When the last member of the newest finished group ended."""
    waited: tuple[float, float] | None = None
    """Batches that waited when the last step was taken, and when the one before it was (infinite: it was the first)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one run needs of the fleet."""

    run: str
    policy: str
    wants_train: bool = False
    """A batch waits, and no step has answered it."""
    envs: tuple[str, ...] = ()
    num_shards: int = 1
    tags: tuple[str, ...] = (ROLLOUT,)
    """Tags of the generations its agents ask for."""
    num_buckets: int = 1
    has_classes: bool = False
    """Whether ``long`` among the components of a tag is a class of generations, and nothing that a node must have."""
    version_slots: int = 0
    """Slots of weights versions among the tags, which likewise are nothing that a node must have; 0: episodes keep none."""
    train_nodes: int = 1
    """Most nodes that may take a step together."""
    groups_per_step: int = 1
    groups_ready: int = 0
    """Finished groups that no step has used, those of a step in progress included."""
    max_staleness: int = 0
    """Batches that may be admitted ahead of the step: with 0 nothing is rolled out while a step is taken."""
    rates: Rates = Rates()
    settled_epochs: Mapping[str, int] = field(default_factory=dict)
    """By node: the newest lease that its trainer obeys, once no step that began under an older one is still in progress."""
    tag_rules: tuple[tuple[str, Rule], ...] = ()
    """Tags that nodes have for this run when their hardware is so."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """By environment: the tag an agent-runner's node must have to run its agents; none for an environment that is not here."""

    def lacks(self, node: Node, tag: str) -> tuple[str, ...]:
        """Components of a tag that a node lacks, for this run. A node that serves a tag serves its long generations too."""
        needed = needed_tag(tag, has_classes=self.has_classes, has_slots=self.version_slots > 0)
        lacking = [part for part in components(needed) if not node.has_tag(part)]
        if lacking and self.tag_rules:
            ruled = {given for given, rule in self.tag_rules if rule.holds(node.hardware)} - node.taken_away
            lacking = [part for part in lacking if part not in ruled]
        return tuple(lacking)

    def served_by(self, node: Node) -> tuple[str, ...]:
        """The run's work tags that a node has all components of."""
        return tuple(tag for tag in self.tags if not self.lacks(node, tag))

    def envs_of(self, node: Node) -> tuple[str, ...]:
        """The run's environments whose agents an agent-runner's node can run."""
        return tuple(env for env in self.envs if env not in self.needs or not self.lacks(node, self.needs[env]))

    @property
    def waiting(self) -> float:
        """Batches that are complete, or partly so, besides the one that is being trained on."""
        return max(0, self.groups_ready - self.wants_train * self.groups_per_step) / self.groups_per_step


@dataclass(frozen=True, slots=True)
class Assignment:
    """The role of a node, and why. ``hand_back``: on losing rollout, generations go to other nodes."""

    node: str
    run: str | None
    role: Role
    reason: str
    tags: tuple[str, ...] = ()
    trainer: bool = False
    gang: tuple[str, ...] = ()
    """Of the lead: all nodes of the steps that begin from now on, its own first; empty: it takes them alone. Of a member: its
    lead and itself."""
    hand_back: bool = False
    lent: bool = False
    """It rolls out between steps that it takes part in; not required for the trainer's node."""
    never_rolls_out: bool = False
    """For the whole run, or until its tags change; so it owns no affinity bucket, and what it holds goes to other nodes."""
    buckets: tuple[int, ...] = ()
    """Affinity buckets that the node owns while it rolls out; filled in by the plan, not by policies."""
    keeps: int | None = None
    let_go: tuple[int, ...] = ()
    """See ``Lease``; filled in by the plan."""


Policy = Callable[[Sequence[Node], Demand, float], list[Assignment]]


def trainer_of(fleet: Iterable[Node], run: str) -> Node | None:
    """The node whose trainer process is the run's: the one that is already, else one that cannot roll out, else the first.

    None when no node can train. A trainer that is away for a moment keeps its place; one that cannot get its device does
    not, if there is another; silent nodes come last.
    """
    able = [node for node in fleet if node.has(TRAIN)]

    def order(node: Node) -> tuple[bool, bool, bool, bool, str]:
        return node.is_stuck, not _is_trainer(node, run), node.is_quiet, node.has(ROLLOUT), node.name

    return min(able, key=order, default=None)


def _is_trainer(node: Node, run: str) -> bool:
    return node.lease is not None and node.lease.run == run and node.lease.trainer


def rollout(node: Node, demand: Demand, reason: str, *, trainer: bool = False) -> Assignment:
    """Sample for the run, for those of its work tags that the node has; a node without any idles.

    It hands back its generations: it would not come back to frozen ones.
    """
    tags = demand.served_by(node)
    if tags:
        return Assignment(node.name, demand.run, Role.ROLLOUT, reason, tags, trainer)
    if node.has(ROLLOUT):
        lacking = " and ".join(dict.fromkeys(part for tag in demand.tags for part in demand.lacks(node, tag)))
        return idle(node, demand, f"nothing of the run is for it: it lacks {lacking}", trainer=trainer, hand_back=True)
    return idle(node, demand, "it cannot roll out, and nothing else is to do", trainer=trainer, hand_back=True)


def train(node: Node, demand: Demand, reason: str, *, hand_back: bool = False, members: Iterable[str] = ()) -> Assignment:
    """Hold the device for optimiser steps, those with ``members`` together."""
    gang = (node.name, *members)
    gang = gang if len(gang) > 1 else ()
    return Assignment(node.name, demand.run, Role.TRAIN, reason, trainer=True, gang=gang, hand_back=hand_back)


def member(node: Node, lead: Node, demand: Demand, reason: str, *, hand_back: bool = False) -> Assignment:
    """Hold the device for the steps of another node's trainer."""
    gang = (lead.name, node.name)
    return Assignment(node.name, demand.run, Role.TRAIN, reason, gang=gang, hand_back=hand_back)


def idle(node: Node, demand: Demand, reason: str, *, trainer: bool = False, hand_back: bool = False) -> Assignment:
    """Belong to the run and leave the device alone."""
    return Assignment(node.name, demand.run, Role.IDLE, reason, trainer=trainer, hand_back=hand_back)
