"""Nodes, roles and leases: who may use which device for what."""

from __future__ import annotations

from enum import StrEnum

from .base import Event, Record, Token


class Role(StrEnum):
    """What a node does for a run."""

    ROLLOUT = "rollout"
    TRAIN = "train"
    IDLE = "idle"
    SERVE = "serve"
    """Services without a device: agent-runner and trajectory-manager."""


class RoleAssigned(Event):
    """The scheduler gave a node a role. The epoch only grows."""

    node: Token
    epoch: int
    role: Role
    tags: tuple[str, ...]
    reason: str


class RoleReleased(Event):
    """A service of the node let go of the device, for the lease with this epoch."""

    node: Token
    epoch: int
    service: Token
    num_frozen: int = 0
    """Generations kept in the sleeping engine."""
    num_handed_back: int = 0


class RoleTaken(Event):
    """A service of the node holds the device lock under this epoch."""

    node: Token
    epoch: int
    service: Token


class NodeStatus(Record):
    """What a process says of itself, in the NODES bucket; it expires unless renewed."""

    node: Token
    """A machine or a slice of it; processes that share a device share the node."""
    service: Token
    instance: str
    capabilities: tuple[str, ...]
    slots: int = 0
    pid: int
    state: str = ""
    """For people: what it does now, or waits for."""
    epoch: int = 0
    """Trajectory-manager: of the newest lease that it obeys. It has let go of all shards which that one does not name."""
    run: str | None = None
    """Trajectory-manager: the run whose model it has, so that it can take shards without delay."""
    facts: dict[str, str | int | float] = {}


class Lease(Record):
    """What a node may do now, in the LEASES bucket; written by the leading scheduler only, compare-and-set."""

    run: str | None
    role: Role
    tags: tuple[str, ...] = ()
    """Rollout: tags of the generations it may pull. Agent-runner: environment tags. Trajectory-manager: its shards."""
    buckets: tuple[int, ...] = ()
    """Affinity buckets it owns, of each tag it rolls out; it keeps them while it is lent to training. Of the others it is a
    backup: it gets what their owners have no room for. With fewer buckets than workers all own all."""
    epoch: int
    reason: str = ""
    trainer: bool = False
    """Whether this node's trainer process is the run's trainer (it joins the run whatever the role is now)."""
    hand_back: bool = False
    """On losing rollout: true hands generations back to the queue, false freezes them in the engine."""


class WeightsHead(Record):
    """The newest complete version of a run, in the WEIGHTS bucket."""

    weights_version: int
    step: int
    path: str
    epoch: int
    """Lease epoch of the writer: an older one may not write."""


class RunPhase(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    """Its streams exist; it waits for nodes, and ``reason`` says for which."""
    RUNNING = "running"
    """It had all the nodes it needs at least once. A reason says what it waits for now."""
    ENDED = "ended"
    """RunEnded was said; ``reason`` repeats it."""
    REFUSED = "refused"
    """Its document cannot be used; ``reason`` says what to set. It has no journal."""


class RunState(Record):
    """What became of a request, in the RUNS bucket (key: the run); written by the leading scheduler."""

    phase: RunPhase
    reason: str = ""
    requested_at: float
    """Unix seconds; runs are served in this order."""
