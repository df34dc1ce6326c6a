"""How well a fleet is used: real services on timed devices, our policies and those of others, every cell shown.

    ways (ours, baselines) x training over rollout work x single turn or agentic x stationary or shifting

Each cell is a whole run over a nats-server of its own, with the same tasks and the same cost model; only scheduling differs.
Baselines are policies over the same services. Every figure of a cell is computed from its journal.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

import uvloop
from rich.console import Console

from loadtest.report import Figure, arguments, publish
from seamlessflow.contracts import Service
from seamlessflow.settings import Settings
from seamlessflow.telemetry import configure_logging

from .timed_cell import Cell
from .timed_figures import WARMUP_STEPS, Figures, figures_of, nodes_given_up
from .timed_modes import OURS, SPLIT, SYNC, WAYS, cell_of, simulated
from .timed_run import Played, play

QUICK = Cell("quick", "multiplexed", nodes=2, steps=3, groups_per_node=1, episode_scale=1, time_scale=400.0)
"""What ``--quick`` plays: two nodes, three steps of two groups."""
LIMIT_SECONDS = 3600.0
"""Real seconds after which a cell is given up."""
AGENTIC_TIME_SCALE = 1 / 3
"""Of that of single turns: an agentic episode is eighteen generations for the services, and two cores carry them all."""
CARRIED_NODES = 24
"""Nodes that two cores carry at the given time scale; with more of them time goes slower."""


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


def main(argv: list[str] | None = None) -> None:
    options = _options(argv)
    configure_logging(Settings(log_level="warning", instance="multiplex"), Service.USER)
    console = Console(highlight=False, width=190)
    results: list[Result] = []
    wrong: list[str] = []
    plan = list(_plan(options))
    for place, (way, base) in enumerate(plan, start=1):
        cell = base if options.quick else cell_of(way, base)
        name = f"[{place}/{len(plan)}] {cell.run} (gang {cell.train_nodes} of {cell.nodes})"
        try:
            results.append(_play(way, cell, options, lambda what, name=name: _progress(name, what)))
        except (RuntimeError, TimeoutError, ValueError) as failure:
            wrong.append(f"{name}: {type(failure).__name__}: {failure}")
            console.print(f"{name} FAILED: {wrong[-1]}")
            continue
        console.print(f"{name}: {_words(results[-1])}")
    _summary(console, results, wrong)
    if figures := _figures(results, strict=not options.quick):
        publish("multiplex", figures, options.results)
    _keep(results, options.results)
    if wrong:
        sys.exit(1)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--steps", type=int, default=16, help=f"of each cell; the first {WARMUP_STEPS} are not counted")
    parser.add_argument("--modes", default=",".join(WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--ratios", default="1,1.7,2.5,4,7", help="rollout work over training work")
    parser.add_argument("--workloads", default="single,agentic")
    parser.add_argument("--kinds", default="stationary,shifting")
    parser.add_argument("--time-scale", type=float, default=30.0, help="modelled seconds in a real one, of few nodes")
    parser.add_argument("--episode-scale", type=int, default=16, help="episodes of the fleet that one timed episode stands for")
    parser.add_argument("--churn", type=float, metavar="SECONDS", help="real ones: so often a node dies and another joins")
    parser.add_argument("--simulate", action="store_true", help="also simulate each cell, and print both")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where logs of the services stay")
    options = parser.parse_args(argv)
    if unknown := sorted({*options.modes.split(",")} - {*WAYS}):
        parser.error(f"--modes: {', '.join(unknown)}: there are {', '.join(WAYS)}")
    return options


def _plan(options: argparse.Namespace) -> Iterator[tuple[str, Cell]]:
    """Ways, each with the fleet and the workload of its cell."""
    if options.quick:
        yield "multiplexed", QUICK
        return
    ways, ratios = options.modes.split(","), [1 / float(ratio) for ratio in options.ratios.split(",")]
    for agentic in (name == "agentic" for name in options.workloads.split(",")):
        for shifts in (kind == "shifting" for kind in options.kinds.split(",")):
            for ratio in ratios:
                base = _base(options, ratio, agentic=agentic, shifts=shifts)
                yield from ((way, base) for way in ways)


def _base(options: argparse.Namespace, ratio: float, *, agentic: bool, shifts: bool) -> Cell:
    time_scale = options.time_scale * min(1.0, CARRIED_NODES / options.nodes) * (AGENTIC_TIME_SCALE if agentic else 1.0)
    return Cell(
        "base",
        "multiplexed",
        nodes=options.nodes,
        ratio=ratio,
        agentic=agentic,
        shifts=shifts,
        steps=options.steps,
        episode_scale=options.episode_scale,
        time_scale=time_scale,
        buckets=min(options.nodes, 8) if agentic else 1,
    )


def _play(way: str, cell: Cell, options: argparse.Namespace, say: object) -> Result:
    assert callable(say)
    keep = None if options.keep is None else options.keep / cell.run
    played = uvloop.run(play(cell, say=say, churn_seconds=options.churn, limit_seconds=LIMIT_SECONDS, keep=keep))
    if options.churn is None and (silent := nodes_given_up(played.events)):
        raise RuntimeError(f"disturbed: {silent} nodes fell silent, so this machine is too busy to say anything; play it again")
    warmup = 1 if cell.shifts or options.quick else WARMUP_STEPS
    figures = figures_of(cell, played.events, warmup)
    return Result(way, cell, figures, *_harness(played), _predicted(cell, warmup, options), options.churn is not None)


def _predicted(cell: Cell, warmup: int, options: argparse.Namespace) -> float | None:
    if not options.simulate:
        return None
    outcome = simulated(cell, warmup)
    return (outcome.all_throughput if cell.shifts else outcome.throughput) * cell.episode_scale


def _harness(played: Played) -> tuple[float, float, list[str]]:
    said = played.processes.values()
    cpu = sum(float(str(each["cpu_seconds"])) for each in said)
    lag = max(float(str(each["lag_p99"])) for each in said)
    failures = [str(words) for each in said for words in _list(each["failures"])]
    return cpu / (played.wall_seconds * (os.cpu_count() or 1)), played.cell.scale.modelled_seconds(lag), failures


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _progress(name: str, what: str) -> None:
    print(f"{name}: {what}", file=sys.stderr, flush=True)


def _words(result: Result) -> str:
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


def _summary(console: Console, results: Sequence[Result], wrong: Sequence[str]) -> None:
    console.print("\nEvery cell: tokens a second (share of the bound), by ratio of training to rollout work")
    for agentic, shifts in sorted({(each.cell.agentic, each.cell.shifts) for each in results}):
        console.print(f"\n{'agentic' if agentic else 'single turn'}, {'shifting' if shifts else 'stationary'}")
        mine = [each for each in results if (each.cell.agentic, each.cell.shifts) == (agentic, shifts)]
        ratios = sorted({each.cell.ratio for each in mine}, reverse=True)
        console.print(f"{'':20}" + "".join(f"{'1:' + format(1 / ratio, '.3g'):>18}" for ratio in ratios))
        for way in dict.fromkeys(each.way for each in mine):
            by_ratio = {each.cell.ratio: each.figures for each in mine if each.way == way}
            cells = (
                f"{by_ratio[r].throughput:>10,.0f} ({by_ratio[r].over_bound:.3f})" if r in by_ratio else "-" for r in ratios
            )
            console.print(f"{way:16}" + "".join(f"{each:>18}" for each in cells))
    for each in wrong:
        console.print(f"FAILED {each}")


def _short(result: Result | None) -> str:
    return "-" if result is None else f"{result.throughput:,.0f} ({result.figures.over_bound:.3f})"


def _figures(results: Sequence[Result], *, strict: bool) -> dict[str, Figure]:
    """All figures that the cells which were played allow. strict: only those with their comparison."""
    figures: dict[str, Figure] = {}
    for agentic, suffix in ((False, ""), (True, "_agentic")):
        mine = [each for each in results if each.cell.agentic is agentic]
        ours = _ours(mine, strict=strict)
        still = [each for each in ours if not each.cell.shifts]
        figures |= _against(still, mine, SYNC, f"throughput_vs_sync_colocated{suffix}", 2.0)
        goal = 1.05 if all(each.cell.nodes < 64 for each in mine) else 1.0
        figures |= _against(still, mine, SPLIT, f"throughput_vs_best_split_stationary{suffix}", goal)
        shifting = [each for each in ours if each.cell.shifts]
        figures |= _against(shifting, mine, SPLIT, f"throughput_vs_best_split_shifting{suffix}", 1.3)
        if still:
            figures |= _shares(still, suffix)
        if mine:
            lost = [float(each.figures.lost_or_repeated) for each in mine]
            figures[f"lost_or_repeated_tokens{suffix}"] = Figure(
                "tokens", "lower", [sum(lost)], "cells played", [len(lost)], 0.0
            )
    return figures


def _ours(results: Sequence[Result], *, strict: bool) -> list[Result]:
    """Cells of the one of our ways that is better over the whole grid."""
    ways = {way: [each for each in results if each.way == way] for way in OURS}
    if not strict:
        return [each for cells in ways.values() for each in cells]
    return max(ways.values(), key=lambda cells: (len(cells), fmean([c.figures.over_bound for c in cells]) if cells else 0.0))


def _against(ours: Sequence[Result], all_: Sequence[Result], way: str, key: str, goal: float) -> dict[str, Figure]:
    """Throughput over another way's, cell by cell. One run: the mean over the grid."""
    theirs = {_place(each): each.throughput for each in all_ if each.way == way}
    pairs = [(each.throughput, theirs[_place(each)]) for each in ours if _place(each) in theirs]
    if not pairs:
        return {}
    mean = fmean(mine / other for mine, other in pairs)
    words = f"{way}, {len(pairs)} cells; from {min(m / o for m, o in pairs):.3f} to {max(m / o for m, o in pairs):.3f}"
    return {key: Figure("times", "higher", [mean], words, [1.0], goal)}


def _place(result: Result) -> tuple[float, bool, bool, int]:
    cell = result.cell
    return cell.ratio, cell.agentic, cell.shifts, cell.nodes


def _shares(still: Sequence[Result], suffix: str) -> dict[str, Figure]:
    def runs(name: str) -> list[float]:
        return [float(getattr(each.figures, name)) for each in still]

    way = "/".join(sorted({each.way for each in still}))
    return {
        f"busy_share{suffix}": Figure("", "higher", runs("least_busy"), f"{way}, all nodes", runs("busy"), 0.97),
        f"handover_share{suffix}": Figure("", "lower", runs("handover"), f"{way}, of node time", [1.0], 0.01),
        f"throughput_vs_bound{suffix}": Figure("", "higher", runs("over_bound"), "bound of the cost model", [1.0], 0.95),
    }


def _keep(results: Iterable[Result], folder: Path) -> None:
    """Every cell, for whoever wants to look at more than the summary."""
    rows = []
    for each in results:
        figures = {name: value for name, value in vars(each.figures).items() if name != "lanes"}
        rows.append({**asdict(replace(each, figures=figures)), "cell": asdict(each.cell)})  # type: ignore[arg-type]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "multiplex_cells.json").write_text(json.dumps(rows, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
