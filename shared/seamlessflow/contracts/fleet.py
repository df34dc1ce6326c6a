"""Nodes, roles and leases: who may use which device for what."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from .base import Event, Record, Token, is_absent


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
    gang: tuple[str, ...] = ()
    """See ``Lease.gang``."""
    left: bool = False
    """The node is not the run's any more: it is gone, or another run's."""


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


class Hardware(Record):
    """What a device is, as far as its node knows or was told; for rules about where work fits. 0: unknown."""

    device: str = ""
    """cpu, or the accelerator's name."""
    memory_bytes: float = 0.0
    flops: float = 0.0
    """Dense operations a second in the precision that is served."""
    bandwidth_bytes: float = 0.0
    """Of its memory, a second."""


CONFLICT = "conflict "
"""What begins the names of the leading scheduler's facts (``NodeStatus.facts``) of a node and service that two processes claim
to be."""


class NodeStatus(Record):
    """What a process says of itself, in the NODES bucket; it expires unless renewed."""

    node: Token
    """A machine or a slice of it; processes that share a device share the node."""
    service: Token
    instance: str
    capabilities: tuple[str, ...]
    """Tags it announces: what it can do (rollout, train, serve) and what its operator calls it (h800, prefill, judge)."""
    slots: int = 0
    engine: str = ""
    """Rollout-worker: the kind of engine."""
    hardware: Hardware | None = None
    """Of its device; None: not known."""
    pid: int
    state: str = ""
    """For people: what it does now, or waits for."""
    epoch: int = 0
    """Trajectory-manager: of the newest lease that it obeys. It has let go of all shards which that one does not name."""
    run: str | None = None
    """Trajectory-manager: the run whose model it has, so that it can take shards without delay. Others: the run of
    ``versions``."""
    facts: dict[str, str | int | float] = {}
    versions: tuple[int, ...] = Field(default=(), exclude_if=is_absent)
    """Of ``run``, where its episodes keep their weights version: rollout-worker: versions it can sample under; agent-runner:
    versions that its episodes keep."""


class NodeOrder(Record):
    """What people ordered of a node by hand, in the ORDERS bucket; it stands until it is changed."""

    add: tuple[str, ...] = ()
    """Tags it has besides those that it announces."""
    remove: tuple[str, ...] = ()
    """Tags that it announces and has not."""
    drain: bool = False
    """Hands back what it has and takes nothing new."""


class Lease(Record):
    """What a node may do now, in the LEASES bucket; written by the leading scheduler only, compare-and-set."""

    run: str | None
    role: Role
    tags: tuple[str, ...] = ()
    """Rollout: work tags of the generations it may pull. Agent-runner: environment tags. Trajectory-manager: its shards."""
    buckets: tuple[int, ...] = ()
    """Affinity buckets it owns, counted over the run's work tags in alphabetical order: bucket b of tag n is n times
    ``fleet.buckets`` plus b. None while it does not roll out; then others own them, and it gets them back. Of the others it is
    a backup: it gets what their owners have no room for. With fewer buckets than workers all own all."""
    epoch: int
    since: float = 0.0
    """When it was written, in Unix seconds of the scheduler's clock."""
    reason: str = ""
    trainer: bool = False
    """Whether this node's trainer process is the run's trainer (it joins the run whatever the role is now)."""
    gang: tuple[str, ...] = ()
    """Role TRAIN: the nodes that take the step together, the trainer's first. The others' devices are held for it. Empty: it
    takes the step alone."""
    lent: bool = False
    """Role ROLLOUT: the node takes steps too and will be called back. Of buckets it does not own it gets what owners and
    backups have no room for."""
    hand_back: bool = False
    """On losing rollout: true hands generations back to the queue, false freezes them in the engine."""
    keeps: int | None = Field(default=None, exclude_if=is_absent)
    """In a run with ``weights.pinned``: the older weights version that the node has beside the newest, fetched where it is
    not there. None: whichever was the newest before."""
    let_go: tuple[int, ...] = Field(default=(), exclude_if=is_absent)
    """Versions that episodes still keep and nobody has any more: their generations go on under the newest."""


class WeightsHead(Record):
    """The newest complete version of a run, in the WEIGHTS bucket."""

    weights_version: int
    step: int
    path: str
    epoch: int
    """Lease epoch of the writer: an older one may not write."""


class WeightsReading(Record):
    """What a reader says of a version, in the READERS bucket: that it reads it now, or that it could not have it. It expires
    unless renewed, by the server's clock."""

    weights_version: int
    path: str
    reader: str
    """Who, for people: a rollout-worker's instance, or a command somewhere."""
    held_seconds: float = 0.0
    """How long it has read, by its own clock; for people."""
    missed: str = ""
    """Why it could not have this version: the trainer then publishes in full. Empty: it reads it now, and what it needs for
    that stays in the store."""


class RunPhase(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    """Its streams exist; it waits for nodes, and ``reason`` says for which."""
    RUNNING = "running"
    """It had all the nodes it needs at least once. A reason says what it waits for now."""
    HELD = "held"
    """It waits for a person, without nodes; ``reason`` says what is wrong and what can be done."""
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
