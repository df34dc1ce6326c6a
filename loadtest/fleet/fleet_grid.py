"""The whole table: every mode, ratio and workload at several sizes, simulated; every cell is printed and kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from .baselines import HAS_SPLIT, best_split, modes
from .constants import GROUPS_PER_NODE, RATIOS
from .cost import cost_of
from .simulator import Scene, simulate
from .simulator_account import Outcome
from .workloads import AGENTIC, REASONING, Workload, shifting, with_ratio

OURS = ("multiplexed", "auto")
MANY = 256
"""From this many nodes on there are fewer episodes for each, so that a cell takes minutes."""
MANY_GROUPS_PER_NODE = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """Which cells of the table are played. ``modes``: as in ``baselines``."""

    agentic: tuple[bool, ...] = (False, True)
    shifts: tuple[bool, ...] = (False, True)
    ratios: tuple[float, ...] = RATIOS
    modes: tuple[str, ...] = tuple(modes(2, 1))

    @property
    def workloads(self) -> list[Workload]:
        """Those that shift behind those that do not."""
        bases = [AGENTIC if agentic else REASONING for agentic in self.agentic]
        return [shifting(base) if shifts else base for shifts in self.shifts for base in bases]


@dataclass(frozen=True, slots=True)
class GridCell:
    """One cell. ``split``: nodes that train, where the mode has a fixed number."""

    nodes: int
    workload: str
    ratio: float
    mode: str
    split: int | None
    outcome: Outcome
    whole_run: bool
    """Whether throughput is that of the whole run: of a workload that shifts."""

    @property
    def throughput(self) -> float:
        return self.outcome.all_throughput if self.whole_run else self.outcome.throughput


def print_grid(sizes: Sequence[int], steps: int, folder: Path, choice: Choice | None = None) -> None:
    """Simulate and print every cell that is chosen (None: all); FOLDER/fleet_grid.json keeps them, after each."""
    cells: list[GridCell] = []
    choice = choice or Choice()
    for nodes in sizes:
        for workload in choice.workloads:
            for ratio in choice.ratios:
                for cell in cells_of(nodes, workload, ratio, steps, choice.modes):
                    cells.append(cell)
                    print(words_of_cell(cell), flush=True)
                    keep(cells, folder)
            for line in compared([cell for cell in cells if (cell.nodes, cell.workload) == (nodes, workload.name)]):
                print(line, flush=True)
    print(f"every cell: {folder / 'fleet_grid.json'}")


def cells_of(
    nodes: int, workload: Workload, ratio: float, steps: int, names: Sequence[str] | None = None
) -> Iterator[GridCell]:
    """Modes (None: all), each with its best split; of a workload that shifts the split that is best at its start."""
    groups = nodes * (GROUPS_PER_NODE if nodes < MANY else MANY_GROUPS_PER_NODE)
    shifts = workload.growth != 1.0
    cost = with_ratio(cost_of(), workload, ratio, groups)
    at_start = replace(workload, growth=1.0)
    for name, mode in modes(nodes, 1).items():
        if names is not None and name not in names:
            continue
        scene = Scene(nodes, workload, cost, mode, groups, steps, steps // 3)
        split = None
        if name in HAS_SPLIT:
            split, outcome, _ = best_split(replace(scene, workload=at_start))
            scene = replace(scene, mode=replace(mode, train_nodes=split))
        if shifts or split is None:
            outcome = simulate(scene)
        yield GridCell(nodes, workload.name, ratio, name, split, outcome, shifts)


def words_of_cell(cell: GridCell) -> str:
    """One line of the table."""
    outcome = cell.outcome
    masked = outcome.masked_tokens / max(1, outcome.trained_tokens + outcome.masked_tokens)
    return (
        f"{cell.nodes:5} {cell.workload:19} 1:{1 / cell.ratio:<4.2g} {cell.mode:18} {cell.split or '-':>4} "
        f"{cell.throughput:12,.0f} tokens/s  bound {outcome.over_bound:.3f}  busy {outcome.busy_share:.3f}  "
        f"hand-over {outcome.handover_share:.4f}  masked {masked:.3f}  "
        f"again {outcome.reprefilled_tokens / outcome.all_tokens:.3f}"
        f"  hits {outcome.cache_hits:.2f}  lost {outcome.lost_or_repeated_tokens}"
    )


def compared(cells: Sequence[GridCell]) -> Iterator[str]:
    """Ours over theirs, the mean over the ratios and the least."""
    found = {(cell.mode, cell.ratio): cell.throughput for cell in cells}
    ratios = sorted({cell.ratio for cell in cells}, reverse=True)
    for ours in OURS:
        for theirs in dict.fromkeys(cell.mode for cell in cells if cell.mode not in OURS):
            times = [
                found[ours, ratio] / found[theirs, ratio]
                for ratio in ratios
                if (ours, ratio) in found and (theirs, ratio) in found
            ]
            if not times:
                continue
            each = ", ".join(f"{value:.2f}" for value in times)
            yield f"      {ours} over {theirs}: {fmean(times):.3f} ({each})"


def keep(cells: Sequence[GridCell], folder: Path) -> None:
    """All cells as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "nodes": cell.nodes,
            "workload": cell.workload,
            "ratio": cell.ratio,
            "mode": cell.mode,
            "split": cell.split,
            "throughput": cell.throughput,
            "over_bound": cell.outcome.over_bound,
            "busy_share": cell.outcome.busy_share,
            "handover_share": cell.outcome.handover_share,
            "masked_tokens": cell.outcome.masked_tokens,
            "trained_tokens": cell.outcome.trained_tokens,
            "reprefilled_tokens": cell.outcome.reprefilled_tokens,
            "cache_hits": cell.outcome.cache_hits,
            "lost_or_repeated_tokens": cell.outcome.lost_or_repeated_tokens,
            "staleness": {str(age): count for age, count in cell.outcome.staleness.items()},
        }
        for cell in cells
    ]
    (folder / "fleet_grid.json").write_text(json.dumps(rows, indent=1) + "\n")
