"""Cells of the grid and what each came to: a line, a place in a table, a row of JSON. Each says how it came about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from .cell_figures import CellFigures
from .timed_cell import Cell
from .virtual_cell import VirtualFigures

TIMED, SIMULATED = "timed", "simulated"


@dataclass(frozen=True)
class Result:
    """A cell that was played. ``predicted``: of a timed one, its throughput as simulated; None: not simulated."""

    way: str
    cell: Cell
    figures: CellFigures
    harness_share: float
    """CPU time of all processes but the server, over the wall time of all cores."""
    worst_lag_seconds: float
    """99th percentile of how late an event loop was, of the process where it was worst; modelled seconds."""
    failures: Sequence[str]
    predicted: float | None = None
    churned: bool = False
    is_virtual: bool = False

    @property
    def how(self) -> str:
        return SIMULATED if self.is_virtual else TIMED

    @property
    def off_by(self) -> float | None:
        """How far the simulator was off, as a share of what was timed."""
        return None if self.predicted is None else abs(self.predicted / self.throughput - 1)

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
    ]
    if isinstance(figures, VirtualFigures):
        words += _lost_time(figures)
    else:
        words.append(f"harness {result.harness_share:.0%} CPU, lag {result.worst_lag_seconds:.1f} s")
    if result.predicted is not None:
        words.append(f"simulated {result.predicted:,.0f} ({result.predicted / result.throughput - 1:+.1%})")
    return "; ".join([*words, *result.failures])


def _lost_time(figures: VirtualFigures) -> list[str]:
    """What is missing from the bound, by cause, where it is a tenth of a percent or more; and the splits that were tried."""
    parts = [f"{cause} {share:.1%}" for cause, share in figures.losses.items() if abs(share) >= 0.001]
    splits = [f"{split}: {each:,.0f}" for split, each in figures.split_throughputs.items()]
    return [f"missing: {', '.join(parts)}"] + ([f"splits {', '.join(splits)}"] if splits else [])


def print_summary(console: Console, results: Sequence[Result], wrong: Sequence[str]) -> None:
    """Tables of the timed cells and of the simulated ones; of the latter how far they may be off."""
    calm = [each for each in results if not each.churned] or list(results)
    console.print("\nEvery cell: tokens a second (share of the bound), by ratio of training to rollout work")
    for is_virtual, agentic, shifts in sorted({(each.is_virtual, each.cell.agentic, each.cell.shifts) for each in calm}):
        off_by = error_of(results, agentic=agentic) if is_virtual else None
        kind = f"simulated ({_off_words(off_by)})" if is_virtual else "timed, real services"
        console.print(
            f"\n{'agentic' if agentic else 'single turn'}, {'shifting' if shifts else 'stationary'}: {kind}", markup=False
        )
        place = is_virtual, agentic, shifts
        mine = [each for each in calm if (each.is_virtual, each.cell.agentic, each.cell.shifts) == place]
        ratios = sorted({each.cell.ratio for each in mine}, reverse=True)
        console.print(f"{'':20}" + "".join(f"{'1:' + format(1 / ratio, '.3g'):>18}" for ratio in ratios))
        for way in dict.fromkeys(each.way for each in mine):
            by_ratio = {each.cell.ratio: each for each in mine if each.way == way}
            cells = (_short(by_ratio.get(ratio)) for ratio in ratios)
            console.print(f"{way:16}" + "".join(f"{each:>18}" for each in cells))
    for each in results:
        if each.churned:
            kind = "agentic" if each.cell.agentic else "single turn"
            console.print(f"\nwith nodes that die and join: {each.way}, {kind}, {each.how}: {words_of(each)}")
    for failure in wrong:
        console.print(f"FAILED {failure}")


def _short(result: Result | None) -> str:
    return "-" if result is None else f"{result.throughput:,.0f} ({result.figures.over_bound:.3f})"


def _off_words(off_by: float | None) -> str:
    return "how far it is off was not measured" if off_by is None else f"off by {off_by:.1%} where timed"


def error_of(results: Iterable[Result], *, agentic: bool) -> float | None:
    """How far the simulator was off in the timed cell where it was furthest; None: none was timed."""
    found = [each.off_by for each in results if each.off_by is not None and each.cell.agentic is agentic]
    return max(found, default=None)


def keep(results: Iterable[Result], folder: Path) -> Path:
    """Every cell, for whoever wants to look at more than the summary; returns where."""
    rows = []
    for each in results:
        figures = {name: value for name, value in vars(each.figures).items() if name != "lanes"}
        row = asdict(replace(each, figures=figures))  # type: ignore[arg-type]
        rows.append({**row, "cell": asdict(each.cell), "how": each.how, "off_by": each.off_by})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "multiplex_cells.json"
    path.write_text(json.dumps(rows, indent=1, default=str) + "\n")
    return path
