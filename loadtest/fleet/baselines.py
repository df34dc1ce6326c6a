"""Other systems' ways of sharing a fleet, over the same services: settings of ours, and one policy of their own.

    synchronous colocated      all roll out one batch, all train it (verl's default, HybridFlow)
    synchronous disaggregated  a fixed split, one half waits for the other (OpenRLHF without --async)
    one step off               a fixed split, the next batch is rolled out while one is trained, with one version each (verl's
                               one_step_off_policy, AReaL with a bound of 1 and without interruption)
    partial rollout            a fixed split under the staleness bound, new weights under running generations (AReaL,
                               PipelineRL)
    idle lending               the same, and trainers roll out whenever no batch is ready (verl's dynamic_schedule, ROLL's
                               partial time-sharing): no weighing of what a hand-over costs, no change of the gang
    multiplexed, auto          ours

Each fixed split, and each size of a gang that is lent, is the best that a search finds for the workload and the mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from seamlessflow_scheduler.policy.base import TRAIN, Assignment, Demand, Node, rollout, trainer_of
from seamlessflow_scheduler.policy.gang import choose_members, gang_assignments

from .constants import MAX_STALENESS
from .simulator import Mode, Scene, simulate
from .simulator_account import Outcome
from .workloads import work_of

IDLE_LENDING_POLICY = f"{__name__}:idle_lending"


def idle_lending(fleet: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """A fixed gang that rolls out from the end of a step until the next batch is ready; a policy as ``base`` promises.

    When a step ends and a whole batch waits already, the next step follows at once and the gang stays.
    """
    lead = trainer_of(fleet, demand.run)
    if lead is None or not lead.can(TRAIN):
        return [rollout(node, demand, "nobody can train") for node in fleet]
    members = choose_members(fleet, demand, now, lead, demand.train_nodes)

    def lent(node: Node) -> Assignment:
        return rollout(node, demand, "no step is taken, so it rolls out", trainer=node is lead)

    if not demand.wants_train and demand.groups_ready < demand.groups_per_step:
        return [lent(node) for node in fleet]
    return gang_assignments(fleet, demand, now, lead, members, "a batch is ready", lent)


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


def balanced_share(scene: Scene) -> float:
    """The number of training nodes at which a search begins, not rounded.

    Where both halves work at the same time they are to take equally long: training's share of all work, T / (T + R). Where one
    waits for the other the sum R / (nodes - s) + T / s is to be least: s = nodes / (1 + sqrt(R / T)).
    """
    work = work_of(scene.workload, scene.cost)
    over = work.rollout_seconds / work.train_seconds
    return scene.nodes / (1 + (math.sqrt(over) if _waits(scene.mode) else over))


def _waits(mode: Mode) -> bool:
    """Whether one half of a fixed split waits for the other."""
    return mode.policy == "disaggregated" and mode.max_staleness == 0


def with_split(scene: Scene, split: int) -> Scene:
    """The same scene with so many training nodes."""
    return replace(scene, mode=replace(scene.mode, train_nodes=split))


def best_split(
    scene: Scene, splits: Iterable[int] | None = None, *, run: Callable[[Scene], Outcome] = simulate
) -> tuple[int, Outcome, dict[int, float]]:
    """The number of training nodes with the highest throughput, its outcome, and the throughput of every one tried.

    splits: these and no others; None: climb from the balanced share, one node at a time, until it falls on both sides.
    """
    outcomes: dict[int, Outcome] = {}

    def throughput(split: int) -> float:
        if split not in outcomes:
            outcomes[split] = run(with_split(scene, split))
        return outcomes[split].throughput

    for split in _climb(balanced_share(scene), max(1, scene.nodes - 1), throughput) if splits is None else splits:
        throughput(split)
    best = max(outcomes, key=throughput)
    return best, outcomes[best], {split: outcome.throughput for split, outcome in outcomes.items()}


def _climb(share: float, most: int, value: Callable[[int], float]) -> Iterable[int]:
    """Splits from 1 to most: those around a share, then neighbours of the best one until it is better than both."""
    low = min(max(1, math.floor(share)), most)
    tried = {low, min(low + 1, most)}
    yield from tried
    while True:
        best = max(tried, key=value)
        beside = {split for split in (best - 1, best + 1) if 1 <= split <= most} - tried
        if not beside:
            return
        tried |= beside
        yield from beside
