"""How long a cell takes to play, said beforehand: from the cost model's bound, and how near each mode comes to it. Pure."""

from __future__ import annotations

from functools import lru_cache
from statistics import fmean

from .timed_cell import Cell
from .workloads import Workload, work_of

NEAR = {"sync-colocated": (0.5, 0.35), "sync-disaggregated": (0.45, 0.35)}
"""Share of the bound that a mode reaches, single turn and agentic. Simulated."""
NEAR_OTHERS = (0.85, 0.55)
FILLING_STEPS = 1.5
"""Steps' worth of time until the fleet is full and the first batch is there."""
VIRTUAL_SECONDS = 6e-5
"""Of one core for each generation of a simulated cell. Measured: 57 to 60 microseconds, agentic and single turn."""
SEARCHED, SEARCHED_RUNS = ("sync-disaggregated", "one-step-off", "partial-rollout", "idle-lending", "multiplexed"), 3.5
"""Modes whose split is searched for, and how many runs that takes."""
SAMPLED_GROUPS = 50
START_SECONDS = 2.0
"""Of a process for each simulated cell."""
AROUND_SECONDS = 30.0
"""Real ones of each cell: starting and ending its processes, reading its journal, searching for its split."""


def real_seconds(cell: Cell) -> float:
    """Real seconds that a cell takes, within a half."""
    work = work_of(cell.workload, cell.cost, 0.5 if cell.shifts else 0.0)
    episodes = cell.groups_per_step * cell.workload.group_size
    step = episodes * (work.rollout_seconds + work.train_seconds) + cell.cost.train_fixed
    near = NEAR.get(cell.mode, NEAR_OTHERS)[cell.agentic]
    return AROUND_SECONDS + cell.scale.real_seconds((cell.steps + FILLING_STEPS) * step / cell.nodes / near)


def virtual_seconds(cell: Cell) -> float:
    """Real seconds of one core that a cell takes to simulate, search for its split included, within a half."""
    workload = cell.workload
    turns = _mean_turns(workload)
    steps = cell.steps + FILLING_STEPS
    if cell.mode in SEARCHED:
        steps = SEARCHED_RUNS * steps if not cell.shifts else SEARCHED_RUNS * (min(cell.steps, 12) + FILLING_STEPS) + steps
    return START_SECONDS + VIRTUAL_SECONDS * steps * cell.groups_per_step * workload.group_size * turns


@lru_cache(maxsize=64)
def _mean_turns(workload: Workload) -> float:
    return fmean(len(turns) for turns in workload.sample(0.0, groups=SAMPLED_GROUPS))


def words_of_time(seconds: float) -> str:
    """For people: minutes or hours."""
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"
