"""What a grid of cells came to: a line for each, tables, figures for tools, and a file with every cell.

Each cell, and so each figure, is timed (real services on timed devices) or simulated. Where a key can be had both ways it is
that of the grid, which is simulated, beside it how far the simulator was off where cells of the same run were timed;
``KEY_timed`` is then that of those cells alone. What was lost or repeated is a matter of real services: it counts every cell,
and is timed where one was; its words say of how many cells, and whether nodes died and joined in timed ones or simulated ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from loadtest.report import Figure

from .multiplex_results import SIMULATED, TIMED, Result, error_of
from .timed_modes import AUTO, OURS, SPLIT, SYNC

AT_START = f"{SPLIT} with the split that was best at the start"
"""The opponent where the workload shifts: it does not know what comes."""

SPLIT_GOAL, LARGE_SPLIT_GOAL, LARGE_NODES = 1.05, 1.0, 64
"""Times the best split's throughput, where work is stationary. In a large fleet some split into whole nodes is always near the
ideal one, so that from ``LARGE_NODES`` on as much is asked for as the split has."""
ERROR_GOAL = 0.05
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


def figures_of(results: Sequence[Result], *, strict: bool) -> dict[str, Figure]:
    """All figures, each with how it came about (see the module's docstring)."""
    timed = [each for each in results if not each.is_virtual]
    virtual = [each for each in results if each.is_virtual]
    figures = _said_how(figures_of_grid(timed, strict=strict), results, TIMED)
    for key, figure in _said_how(figures_of_grid(virtual, strict=strict), results, SIMULATED).items():
        if (played := figures.pop(key, None)) is not None and key.startswith("lost_or_repeated"):
            figures[key] = _added(played, figure)
            continue
        figures[key] = figure
        if played is not None:
            figures[f"{key}_timed"] = played
    for agentic, suffix in SUFFIXES:
        if (off_by := error_of(results, agentic=agentic)) is not None:
            figures[f"simulator_error{suffix}"] = _error(results, off_by, agentic=agentic)
    return figures


def _said_how(figures: Mapping[str, Figure], results: Sequence[Result], how: str) -> dict[str, Figure]:
    """With what they are; simulated ones with how far the simulator was off."""

    def off_by(key: str) -> float | None:
        return error_of(results, agentic=key.endswith("_agentic")) if how == SIMULATED else None

    return {key: replace(figure, how=how, off_by=off_by(key)) for key, figure in figures.items()}


def _added(timed: Figure, virtual: Figure) -> Figure:
    """Tokens that were lost in either."""
    words = f"{TIMED}: {timed.reference}; {SIMULATED}: {virtual.reference_value:.0f} {virtual.reference}"
    return replace(timed, runs=[timed.value + virtual.value], reference=words)


def _error(results: Sequence[Result], off_by: float, *, agentic: bool) -> Figure:
    cells = [each for each in results if each.off_by is not None and each.cell.agentic is agentic]
    each = ", ".join(f"{cell.way} {cell.off_by:.1%}" for cell in cells)
    words = f"tokens a second simulated over timed, the worst of {len(cells)}: {each}"
    return Figure("", "lower", [max(1e-6, off_by)], words, [1.0], ERROR_GOAL, TIMED)


def figures_of_grid(results: Sequence[Result], *, strict: bool) -> dict[str, Figure]:
    """All figures that cells of one kind allow. strict: only those with their comparison.

    Cells with churn count for what was lost, and for nothing else as long as there are others.
    """
    figures: dict[str, Figure] = {}
    for agentic, suffix in SUFFIXES:
        everything = [each for each in results if each.cell.agentic is agentic]
        mine = [each for each in everything if not each.churned] or everything
        ours = _ours(mine, strict=strict)
        still = [each for each in ours if not each.cell.shifts]
        figures |= _against(still, mine, SYNC, SYNC, f"throughput_vs_sync_colocated{suffix}", 2.0)
        key = f"throughput_vs_best_split_stationary{suffix}"
        figures |= _against(still, mine, SPLIT, f"{SPLIT} with its best split", key, split_goal(mine))
        shifting = [each for each in ours if each.cell.shifts]
        figures |= _against(shifting, mine, SPLIT, AT_START, f"throughput_vs_best_split_shifting{suffix}", 1.3)
        if still:
            figures |= _shares(still, suffix)
        if everything:
            figures[f"lost_or_repeated_tokens{suffix}"] = _lost(everything)
    return figures


def split_goal(results: Sequence[Result]) -> float:
    """What is asked for beside the best split: less where the fleet is large."""
    return LARGE_SPLIT_GOAL if any(each.cell.nodes >= LARGE_NODES for each in results) else SPLIT_GOAL


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
    nodes = "/".join(str(number) for number in sorted({each.cell.nodes for each in ours}))
    words = f"{_names(ours)} over {words}, {len(pairs)} cells of {nodes} nodes; from {least:.3f} to {most:.3f}"
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
