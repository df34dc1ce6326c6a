"""How well a fleet is used: real services on timed devices, our policies and those of others, every cell shown.

    ways (ours, baselines) x training over rollout work x single turn or agentic x stationary or shifting

Each cell is a whole run over a nats-server of its own, with the same tasks and the same cost model; only scheduling differs.
Baselines are policies over the same services. Every figure of a cell is computed from its journal.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import uvloop
from rich.console import Console

from loadtest.report import arguments, publish
from seamlessflow.contracts import Service
from seamlessflow.settings import Settings
from seamlessflow.telemetry import configure_logging

from .multiplex_report import Result, figures_of_grid, keep, print_summary, words_of
from .timed_cell import Cell
from .timed_figures import WARMUP_STEPS, figures_of, nodes_given_up
from .timed_modes import WAYS, cell_of, simulated
from .timed_run import Played, play

QUICK = Cell("quick", "multiplexed", nodes=2, steps=3, groups_per_node=1, episode_scale=1, time_scale=400.0)
"""What ``--quick`` plays: two nodes, three steps of two groups."""
LIMIT_SECONDS = 3600.0
"""Real seconds after which a cell is given up."""
AGENTIC_TIME_SCALE = 1 / 3
"""Of that of single turns: a turn is a second then, and what our services take for each is a small part of it."""
CARRIED_NODES = 24
"""Nodes that two cores carry at the given time scale; with more of them time goes slower."""


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
        console.print(f"{name}: {words_of(results[-1])}")
    print_summary(console, results, wrong)
    if figures := figures_of_grid(results, strict=not options.quick):
        publish("multiplex", figures, options.results)
    keep(results, options.results)
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


if __name__ == "__main__":
    main()
