"""Ways to share a fleet (``baselines``), as cells of the grid; and a cell as a scene of the simulator. Pure.

A fixed split, or the size of a gang that is lent, is searched for: by simulating the very workload, until one more and one less
are worse; the best one is played. Of a workload that shifts it is the one that is best at the start.

Over the same services a mode is a policy and a bound: what the simulator can do besides (load new weights only when nothing
runs, take groups in the order of their admission) no timed run does, so ``one-step-off`` is better here than it is elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from .baselines import HAS_SPLIT, best_split, modes
from .simulator import Mode, Scene, simulate
from .simulator_account import Outcome
from .timed_cell import Cell
from .workloads import Workload

AUTO = "auto"
"""The one of our ways that figures are of: nobody has to choose anything for it."""
OURS = ("multiplexed", AUTO)
SYNC, SPLIT = "sync-colocated", "partial-rollout"
SEARCH_STEPS, SEARCH_WARMUP = 12, 4


def _word(name: str) -> str:
    return name.replace(" ", "-")


WAYS: Mapping[str, str] = {_word(name): name for name in modes(8, 1)}
"""By the name that is typed; the value is the one in ``baselines``."""


def cell_of(way: str, base: Cell) -> Cell:
    """The cell of a way: the base's fleet and workload. Searches where its split is fixed."""
    mode = modes(base.nodes, 1, base.max_staleness)[WAYS[way]]
    cell = replace(
        base, mode=way, policy=mode.policy, max_staleness=mode.max_staleness, train_nodes=min(mode.train_nodes, base.nodes)
    )
    return replace(cell, train_nodes=_best_split(_without_length(cell))) if mode.name in HAS_SPLIT else cell


def simulated(cell: Cell, warmup_steps: int) -> Outcome:
    """The same cell in virtual time."""
    return simulate(scene_of(cell, cell.workload, warmup_steps))


def scene_of(cell: Cell, workload: Workload, warmup_steps: int) -> Scene:
    """A cell for the simulator: coarse sequences and all."""
    return Scene(
        nodes=cell.nodes,
        workload=workload,
        cost=cell.cost,
        mode=Mode(cell.mode, cell.policy, cell.max_staleness, cell.train_nodes),
        groups_per_step=cell.groups_per_step,
        steps=cell.steps,
        warmup_steps=warmup_steps,
        buckets=cell.buckets,
    )


def _without_length(cell: Cell) -> Cell:
    """What the search depends on."""
    return replace(cell, steps=SEARCH_STEPS, train_nodes=1, time_scale=1.0)


@lru_cache(maxsize=256)
def _best_split(cell: Cell) -> int:
    at_start = replace(cell.workload, growth=1.0)
    split, _, _ = best_split(scene_of(cell, at_start, SEARCH_WARMUP))
    return split
