"""How long a cell takes to play, said beforehand: from the cost model's bound, and how near each mode comes to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from .timed_cell import Cell
from .workloads import work_of

NEAR = {"sync-colocated": (0.5, 0.35), "sync-disaggregated": (0.45, 0.35)}
"""Share of the bound that a mode reaches, single turn and agentic. Simulated."""
NEAR_OTHERS = (0.85, 0.55)
FILLING_STEPS = 1.5
"""Steps' worth of time until the fleet is full and the first batch is there."""
AROUND_SECONDS = 30.0
"""Real ones of each cell: starting and ending its processes, reading its journal, searching for its split."""


def real_seconds(cell: Cell) -> float:
    """Real seconds that a cell takes, within a half."""
    work = work_of(cell.workload, cell.cost, 0.5 if cell.shifts else 0.0)
    episodes = cell.groups_per_step * cell.workload.group_size
    step = episodes * (work.rollout_seconds + work.train_seconds) + cell.cost.train_fixed
    near = NEAR.get(cell.mode, NEAR_OTHERS)[cell.agentic]
    return AROUND_SECONDS + cell.scale.real_seconds((cell.steps + FILLING_STEPS) * step / cell.nodes / near)


def words_of_time(seconds: float) -> str:
    """For people: minutes or hours."""
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"


def total_words(cells: Iterable[Cell]) -> str:
    """How many cells, and how long all of them take."""
    all_ = list(cells)
    return f"{len(all_)} cell{'s' * (len(all_) != 1)}, about {words_of_time(sum(real_seconds(cell) for cell in all_))}"
