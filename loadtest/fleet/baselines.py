"""Other systems' ways of sharing a fleet, over the same services: settings of ours, and one policy of their own.

    synchronous colocated      all roll out one batch, all train it (verl's default, HybridFlow)
    synchronous disaggregated  a fixed split, one half waits for the other (OpenRLHF without --async)
    one step off               a fixed split, the next batch is rolled out while one is trained, with one version each (verl's
                               one_step_off_policy, AReaL with a bound of 1 and without interruption)
    partial rollout            a fixed split under the staleness bound, new weights under running generations (AReaL,
    PipelineRL) idle lending               the same, and trainers roll out whenever no batch is ready (verl's
    dynamic_schedule, ROLL's partial
                               time-sharing): no weighing of what a hand-over costs, no change of the gang
    multiplexed, auto          ours

Each fixed split is the best that a search finds for the workload and the mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from services.scheduler.policy.base import TRAIN, Assignment, Demand, Node, rollout, trainer_of
from services.scheduler.policy.gang import choose_members, steered

from .constants import MAX_STALENESS
from .simulator import Mode, Scene, simulate
from .simulator_account import Outcome
from .workloads import work_of

IDLE_LENDING_POLICY = f"{__name__}:idle_lending"


def idle_lending(fleet: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """A fixed gang that rolls out from the end of a step until the next batch is ready; a policy as ``base`` promises."""
    lead = trainer_of(fleet, demand.run)
    if lead is None or not lead.can(TRAIN):
        return [rollout(node, demand, "nobody can train") for node in fleet]
    members = choose_members(fleet, demand, now, lead, demand.train_nodes)

    def lent(node: Node) -> Assignment:
        return rollout(node, demand, "no step is taken, so it rolls out", trainer=node is lead)

    if not demand.wants_train:
        return [lent(node) for node in fleet]
    return steered(fleet, demand, now, lead, members, "a batch is ready", lent)


def modes(nodes: int, split: int, max_staleness: int = MAX_STALENESS) -> dict[str, Mode]:
    """All modes of a fleet. split: nodes that train where the split is fixed (search it for each mode)."""
    found = (
        Mode("sync colocated", "colocated", 0, nodes),
        Mode("sync disaggregated", "disaggregated", 0, split),
        Mode("one step off", "disaggregated", 1, split, partial_rollout=False, in_order=True),
        Mode("partial rollout", "disaggregated", max_staleness, split),
        Mode("idle lending", IDLE_LENDING_POLICY, max_staleness, split),
        Mode("multiplexed", "multiplexed", max_staleness, split),
        Mode("auto", "auto", max_staleness, nodes),
    )
    return {mode.name: mode for mode in found}


HAS_SPLIT = ("sync disaggregated", "one step off", "partial rollout", "idle lending", "multiplexed")
"""Modes for which the number of nodes that train is searched."""


def candidate_splits(scene: Scene, reach: int = 1) -> Iterable[int]:
    """Numbers of training nodes around the one that total work asks for. ``reach``: how far; ``nodes`` for all."""
    work = work_of(scene.workload, scene.cost)
    share = scene.nodes * work.train_seconds / (work.train_seconds + work.rollout_seconds)
    low, high = math.floor(share) - reach + 1, math.ceil(share) + reach - 1
    return range(max(1, low), min(scene.nodes - 1, max(high, low + 1)) + 1)


def with_split(scene: Scene, split: int) -> Scene:
    """The same scene with so many training nodes."""
    return replace(scene, mode=replace(scene.mode, train_nodes=split))


def best_split(
    scene: Scene, splits: Iterable[int] | None = None, *, run: Callable[[Scene], Outcome] = simulate
) -> tuple[int, Outcome, dict[int, float]]:
    """The number of training nodes with the highest throughput, its outcome, and the throughput of every one tried.

    splits: None for those near the share of work; more or fewer are further from balance, whatever the mode.
    """
    outcomes = {split: run(with_split(scene, split)) for split in splits or candidate_splits(scene)}
    best = max(outcomes, key=lambda split: outcomes[split].throughput)
    return best, outcomes[best], {split: outcome.throughput for split, outcome in outcomes.items()}
