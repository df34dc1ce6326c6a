"""What a grid of played cells came to: a line for each, tables, figures for tools, and a file with every cell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from rich.console import Console

from loadtest.report import Figure

from .timed_cell import Cell
from .timed_figures import Figures
from .timed_modes import AUTO, OURS, SPLIT, SYNC

AT_START = f"{SPLIT} with the split that was best at the start"
"""The opponent where the workload shifts: it does not know what comes."""


SUFFIXES = ((False, ""), (True, "_agentic"))
NEEDED = (("", "single"), ("_agentic", "agentic"))
PROMISED = {
    "throughput_vs_sync_colocated": f"--modes {AUTO},{SYNC} --kinds stationary",
    "throughput_vs_best_split_stationary": f"--modes {AUTO},{SPLIT} --kinds stationary",
    "throughput_vs_best_split_shifting": f"--modes {AUTO},{SPLIT} --kinds shifting",
    "busy_share": f"--modes {AUTO} --kinds stationary",
    "handover_share": f"--modes {AUTO} --kinds stationary",
    "lost_or_repeated_tokens": "any mode",
    "throughput_vs_bound": f"--modes {AUTO} --kinds stationary",
}
"""Figures, and the least that must be played for each."""


@dataclass(frozen=True)
class Result:
    """A cell that was played. ``predicted``: by the simulator, its throughput; None: not asked for."""

    way: str
    cell: Cell
    figures: Figures
    harness_share: float
    """CPU time of all processes but the server, over the wall time of all cores."""
    worst_lag_seconds: float
    """99th percentile of how late an event loop was, of the process where it was worst; modelled seconds."""
    failures: Sequence[str]
    predicted: float | None = None
    churned: bool = False

    @property
    def throughput(self) -> float:
        """Of a workload that shifts that of the whole run, of one that does not that of the steady state."""
        return self.figures.all_throughput if self.cell.shifts else self.figures.throughput


def words_of(result: Result) -> str:
    figures = result.figures
    words = [
        f"{result.throughput:,.0f} tokens/s, {figures.over_bound:.3f} of the bound",
        f"busy {figures.busy:.1%} (least {figures.least_busy:.1%})",
        f"hand-over {figures.handover:.2%}",
        f"step {figures.step_seconds:,.0f} s",
        f"moved {figures.moved}, fed again {figures.reprefilled:.3f} a token",
        f"staleness {figures.staleness_mean:.2f} (most {figures.staleness_max}), masked {figures.masked:.2%}",
        f"lost or repeated {figures.lost_or_repeated}",
        f"harness {result.harness_share:.0%} CPU, lag {result.worst_lag_seconds:.1f} s",
    ]
    if result.predicted is not None:
        words.append(f"simulated {result.predicted:,.0f} ({result.throughput / result.predicted - 1:+.1%})")
    return "; ".join([*words, *result.failures])


def print_summary(console: Console, results: Sequence[Result], wrong: Sequence[str]) -> None:
    console.print("\nEvery cell: tokens a second (share of the bound), by ratio of training to rollout work")
    calm = [each for each in results if not each.churned] or list(results)
    for agentic, shifts in sorted({(each.cell.agentic, each.cell.shifts) for each in calm}):
        console.print(f"\n{'agentic' if agentic else 'single turn'}, {'shifting' if shifts else 'stationary'}")
        mine = [each for each in calm if (each.cell.agentic, each.cell.shifts) == (agentic, shifts)]
        ratios = sorted({each.cell.ratio for each in mine}, reverse=True)
        console.print(f"{'':20}" + "".join(f"{'1:' + format(1 / ratio, '.3g'):>18}" for ratio in ratios))
        for way in dict.fromkeys(each.way for each in mine):
            by_ratio = {each.cell.ratio: each for each in mine if each.way == way}
            cells = (_short(by_ratio.get(ratio)) for ratio in ratios)
            console.print(f"{way:16}" + "".join(f"{each:>18}" for each in cells))
    for each in results:
        if each.churned:
            console.print(f"\nwith nodes that die and join: {each.way}: {words_of(each)}")
    for failure in wrong:
        console.print(f"FAILED {failure}")


def _short(result: Result | None) -> str:
    return "-" if result is None else f"{result.throughput:,.0f} ({result.figures.over_bound:.3f})"


def figures_of_grid(results: Sequence[Result], *, strict: bool) -> dict[str, Figure]:
    """All figures that the cells which were played allow. strict: only those with their comparison.

    Cells with churn count for what was lost, and for nothing else as long as there are others.
    """
    figures: dict[str, Figure] = {}
    for agentic, suffix in SUFFIXES:
        everything = [each for each in results if each.cell.agentic is agentic]
        mine = [each for each in everything if not each.churned] or everything
        ours = _ours(mine, strict=strict)
        still = [each for each in ours if not each.cell.shifts]
        figures |= _against(still, mine, SYNC, SYNC, f"throughput_vs_sync_colocated{suffix}", 2.0)
        goal = 1.05 if all(each.cell.nodes < 64 for each in mine) else 1.0
        figures |= _against(
            still, mine, SPLIT, f"{SPLIT} with its best split", f"throughput_vs_best_split_stationary{suffix}", goal
        )
        shifting = [each for each in ours if each.cell.shifts]
        figures |= _against(shifting, mine, SPLIT, AT_START, f"throughput_vs_best_split_shifting{suffix}", 1.3)
        if still:
            figures |= _shares(still, suffix)
        if everything:
            figures[f"lost_or_repeated_tokens{suffix}"] = _lost(everything)
    return figures


def missing(figures: Iterable[str]) -> dict[str, str]:
    """Promised figures that are not there, each with what has to be played for it."""
    found = set(figures)
    keys = {f"{key}{suffix}": f"{needs}, --workloads {word}" for (key, needs) in PROMISED.items() for suffix, word in NEEDED}
    return {key: needs for key, needs in keys.items() if key not in found}


def _lost(results: Sequence[Result]) -> Figure:
    lost = [float(each.figures.lost_or_repeated) for each in results]
    churned = sum(each.churned for each in results)
    return Figure("tokens", "lower", [sum(lost)], f"cells played, {churned} of them with churn", [len(lost)], 0.0)


def _ours(results: Sequence[Result], *, strict: bool) -> list[Result]:
    """Cells of ``auto``: named beforehand, not the better of ours after the fact. Not strict: of any of our ways."""
    return [each for each in results if each.way == AUTO or (not strict and each.way in OURS)]


def _against(ours: Sequence[Result], all_: Sequence[Result], way: str, words: str, key: str, goal: float) -> dict[str, Figure]:
    """Throughput over another way's, cell by cell. One run: the mean over the grid. words: what that way is."""
    theirs = {_place(each): each.throughput for each in all_ if each.way == way}
    pairs = [(each.throughput, theirs[_place(each)]) for each in ours if _place(each) in theirs]
    if not pairs:
        return {}
    mean = fmean(mine / other for mine, other in pairs)
    least, most = min(mine / other for mine, other in pairs), max(mine / other for mine, other in pairs)
    words = f"{_names(ours)} over {words}, {len(pairs)} cells; from {least:.3f} to {most:.3f}"
    return {key: Figure("times", "higher", [mean], words, [1.0], goal)}


def _names(results: Sequence[Result]) -> str:
    return "/".join(sorted({each.way for each in results}))


def _place(result: Result) -> tuple[float, bool, bool, int]:
    cell = result.cell
    return cell.ratio, cell.agentic, cell.shifts, cell.nodes


def _shares(still: Sequence[Result], suffix: str) -> dict[str, Figure]:
    """Each of the cell where it is worst: what is promised of every node is promised of every cell."""

    def all_of(name: str) -> list[float]:
        return [float(getattr(each.figures, name)) for each in still]

    way, count = _names(still), f"{len(still)} cells"
    handover, bound = all_of("handover"), all_of("over_bound")
    return {
        f"busy_share{suffix}": Figure(
            "", "higher", [min(all_of("least_busy"))], f"{way}, mean of all nodes of {count}", [fmean(all_of("busy"))], 0.97
        ),
        f"handover_share{suffix}": Figure(
            "", "lower", [max(handover)], f"{way}, of node time, mean of {count}", [fmean(handover)], 0.01
        ),
        f"throughput_vs_bound{suffix}": Figure(
            "", "higher", [min(bound)], f"{way}; bound of the cost model; mean of {count}", [fmean(bound)], 0.95
        ),
    }


def keep(results: Iterable[Result], folder: Path) -> Path:
    """Every cell, for whoever wants to look at more than the summary; returns where."""
    rows = []
    for each in results:
        figures = {name: value for name, value in vars(each.figures).items() if name != "lanes"}
        rows.append({**asdict(replace(each, figures=figures)), "cell": asdict(each.cell)})  # type: ignore[arg-type]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "multiplex_cells.json"
    path.write_text(json.dumps(rows, indent=1, default=str) + "\n")
    return path
