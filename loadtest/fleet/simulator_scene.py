"""What is simulated: a fleet, a workload, a cost and a mode; and the run document that says the same to the scheduler. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seamlessflow.config.run import RunConfig, parse_run_config
from seamlessflow.config.training_sections import MAX_BUCKETS

from .constants import BUCKETS_PER_NODE, TICK_SECONDS
from .cost import Cost
from .simulator_scheduler import ENV
from .workloads import Workload

RUN = "simulated"


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to share the fleet."""

    name: str
    policy: str
    """As ``fleet.policy`` of a run document."""
    max_staleness: int
    train_nodes: int
    partial_rollout: bool = True
    """False: new weights are loaded when no generation runs any more, and until then none begins."""
    in_order: bool = False
    """True: a step takes the groups that were admitted first, and waits for them; as the real trainer does not."""


@dataclass(frozen=True, slots=True)
class Change:
    """A node that comes or dies."""

    at: float
    node: str
    joins: bool


@dataclass(frozen=True)
class Scene:
    """What is simulated. ``steps``: optimiser steps, ``warmup_steps`` of which are not counted."""

    nodes: int
    workload: Workload
    cost: Cost
    mode: Mode
    groups_per_step: int
    steps: int = 12
    warmup_steps: int = 4
    tick_seconds: float = TICK_SECONDS
    """Between looks at the fleet, besides those that events cause."""
    changes: Sequence[Change] = ()
    with_spans: bool = False
    buckets: int | None = None
    """None: ``BUCKETS_PER_NODE`` for each node, as far as a run document allows."""
    long_tail: float | None = None
    """As ``fleet.long_tail`` of a run document."""

    @property
    def rolling_nodes(self) -> int | None:
        """Nodes that roll out at a time, where the mode says how many; None: it changes."""
        fixed = {"colocated": self.nodes, "disaggregated": max(1, self.nodes - self.mode.train_nodes)}
        return fixed.get(self.mode.policy)


def node_name(number: int) -> str:
    """Names sort as their numbers do."""
    return f"n{number:05}"


def config_of(scene: Scene) -> RunConfig:
    """The run document of a scene."""
    mode = scene.mode
    buckets = scene.buckets or min(MAX_BUCKETS, BUCKETS_PER_NODE * scene.nodes)
    return parse_run_config(
        {
            "model": {"name": "none"},
            "agents": [{"env": ENV, "external": True, "reward": "reported"}],
            "algorithm": {
                "steps": scene.steps,
                "groups_per_step": scene.groups_per_step,
                "group_size": scene.workload.group_size,
                "max_staleness": mode.max_staleness,
            },
            "fleet": {
                "policy": mode.policy,
                "train_nodes": mode.train_nodes,
                "slots": scene.cost.slots,
                "buckets": buckets,
                "long_tail": scene.long_tail,
            },
            "evaluation": {"before": False, "after": False},
        }
    )
