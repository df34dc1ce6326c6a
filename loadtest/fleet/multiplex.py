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
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop
from rich.console import Console

from loadtest.report import publish
from seamlessflow.contracts import Service
from seamlessflow.settings import Settings
from seamlessflow.telemetry import configure_logging

from .constants import RATIOS
from .estimate import real_seconds, total_words, words_of_time
from .multiplex_report import Result, figures_of_grid, keep, missing, print_summary, words_of
from .options import KINDS, MODES_HELP, RATIO_WORDS, WORKLOADS, number, numbers, prepare, refuse_with, taught, whole, words
from .timed_cell import Cell
from .timed_figures import WARMUP_STEPS, figures_of, nodes_given_up
from .timed_modes import AUTO, WAYS, cell_of, simulated
from .timed_run import Played, play

QUICK = Cell("quick", "multiplexed", nodes=2, steps=3, groups_per_node=1, episode_scale=1, time_scale=400.0)
"""What ``--quick`` plays: two nodes, three steps of two groups."""
LEAST_LIMIT_SECONDS, LIMIT_TIMES = 3600.0, 4
"""Real seconds after which a cell is given up: an hour, or so many times what it should take."""
AGENTIC_TIME_SCALE = 1 / 3
"""Of that of single turns: a turn is a second then, and what our services take for each is a small part of it."""
CARRIED_NODES = 24
"""Nodes that two cores carry at the given time scale; with more of them time goes slower."""
STEPS, AGENTIC_STEPS = 16, 10
"""Of each cell, where none is asked for. Steps of agents take ten times as long to play."""
MOST_EPISODE_SCALE = 32
"""With more a device no longer has room for the longest sequences."""
CHURN_RATIO, CHURN_SECONDS = 2.5, 60.0
"""The cell in which a node dies and another joins each minute, where all cells are played without."""
CELL_OPTIONS = ("nodes", "steps", "modes", "ratios", "workloads", "kinds", "time_scale", "episode_scale")

HELP = f"""\
A cell is one whole run: a fleet x a workload x a kind x a ratio of rollout to training work x a mode.
  workloads  single (one long answer each) · agentic (turns with tools that have a heavy tail of latencies)
  kinds      stationary · shifting (answers get three times as long over the run; the split stays what was best at its start)
  ratios     rollout over training work: 2.5 is 1:2.5

{MODES_HELP}

What is printed: for each cell a line (tokens a second, share of the bound of the cost model, busy and hand-over shares, what
moved, staleness, what was lost, how much of this machine it took), tables of all cells, cells that failed, then the figures
with goal and verdict. FOLDER/multiplex.json and FOLDER/multiplex_cells.json have the same; the latter grows with every cell.
  throughput_vs_sync_colocated          auto over sync-colocated, stationary: mean of the ratios
  throughput_vs_best_split_stationary   auto over partial-rollout with its best split: mean of the ratios
  throughput_vs_best_split_shifting     auto over the split that was best at the start
  busy_share                            of the node that was least busy, in the cell where that is least
  handover_share, throughput_vs_bound   of the cell where it is worst
  lost_or_repeated_tokens               over every cell, among them one in which a node dies and one joins each minute
  ..._agentic                           each of them where agents play

How long, with {{nodes}} nodes on two cores and nothing beside it (said again before the first cell):
  a cell, single turn   stationary {{single}}, shifting {{single_shift}}; of a synchronous mode up to {{single_sync}}
  a cell, agentic       stationary {{agentic}}, shifting {{agentic_shift}}; of a synchronous mode up to {{agentic_sync}}
  everything            {{all}}; without agents {{all_single}}
  every key             {{keys}} (--modes auto,partial-rollout,sync-colocated); without agents {{keys_single}}

Examples:
  ./task load:multiplex -- --ratios 2.5 --workloads single --kinds stationary          one cell for each mode
  ./task load:multiplex -- --modes auto,partial-rollout,sync-colocated --workloads single     every key of single turns
  ./task load:multiplex -- --nodes 64 --modes auto,partial-rollout --ratios 2.5 --workloads single --kinds stationary --steps 8
  ./task load:multiplex -- --modes auto --ratios 2.5 --workloads single --churn 30     a node dies every 30 seconds in each cell
"""


@dataclass(frozen=True)
class Planned:
    """One cell to be played. ``base``: its fleet and workload; the mode is not in it yet."""

    way: str
    base: Cell
    churn_seconds: float | None = None


def main(argv: list[str] | None = None) -> None:
    options = _options(argv)
    configure_logging(Settings(log_level="warning", instance="multiplex"), Service.USER)
    console = Console(highlight=False, width=190)
    results: list[Result] = []
    wrong: list[str] = []
    plan = list(_plan(options))
    console.print(total_words(_as_it_will_be(each) for each in plan) + ", on two cores and nothing beside it")
    for place, planned in enumerate(plan, start=1):
        cell = planned.base if options.quick else cell_of(planned.way, planned.base)
        churned = "" if planned.churn_seconds is None else f", a node dies each {planned.churn_seconds:g} s"
        name = f"[{place}/{len(plan)}] {cell.run} (gang {cell.train_nodes} of {cell.nodes}{churned})"
        try:
            results.append(_play(planned, cell, options, lambda what, name=name: _progress(name, what)))
        except (RuntimeError, TimeoutError, ValueError) as failure:
            wrong.append(f"{name}: {type(failure).__name__}: {failure}")
            console.print(f"{name} FAILED: {wrong[-1]}")
            continue
        console.print(f"{name}: {words_of(results[-1])}")
        keep(results, options.results)
    print_summary(console, results, wrong)
    figures = figures_of_grid(results, strict=not options.quick)
    if figures:
        publish("multiplex", figures, options.results)
    for key, needs in missing(figures).items():
        console.print(f"not measured: {key} (needs {needs})")
    console.print(f"every cell: {keep(results, options.results)}")
    if wrong:
        sys.exit(1)


def _as_it_will_be(planned: Planned) -> Cell:
    """For the time it takes; its split is not searched for."""
    return replace(planned.base, mode=planned.way)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = taught(__doc__, "")
    parser.add_argument("--nodes", type=whole(2), default=8, metavar="N", help="of the fleet (8)")
    parser.add_argument(
        "--steps",
        type=whole(3),
        metavar="N",
        help=f"of each cell ({STEPS}, agentic {AGENTIC_STEPS}); the first {WARMUP_STEPS} of a stationary one are not counted",
    )
    for name, allowed in (("--modes", tuple(WAYS)), ("--workloads", WORKLOADS), ("--kinds", KINDS)):
        every = f"of {', '.join(allowed)} (all)"
        parser.add_argument(name, type=words(allowed), default=list(allowed), metavar="WORD,...", help=every)
    ratios = [1 / ratio for ratio in RATIOS]
    parser.add_argument(
        "--ratios",
        type=numbers(0, above=True),
        default=ratios,
        metavar="R,...",
        help=f"rollout work over training work ({RATIO_WORDS})",
    )
    parser.add_argument(
        "--time-scale",
        type=number(0, above=True),
        default=30.0,
        metavar="N",
        help=f"modelled seconds in a real one (30); agentic a third of it, and slower with more than {CARRIED_NODES} nodes",
    )
    parser.add_argument(
        "--episode-scale",
        type=whole(1, MOST_EPISODE_SCALE),
        default=16,
        metavar="N",
        help=f"episodes of the fleet that one timed episode stands for (16; most {MOST_EPISODE_SCALE})",
    )
    parser.add_argument(
        "--churn",
        type=number(0, above=True),
        metavar="SECONDS",
        help=f"in every cell a node dies and another joins so often, in real seconds; without it one more cell ({AUTO}, "
        f"1:{CHURN_RATIO:g}) for each workload has {CHURN_SECONDS:.0f}",
    )
    parser.add_argument("--simulate", action="store_true", help="also simulate each cell, and print how far both are apart")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where logs and journals of the services stay")
    if {"-h", "--help"} & {*(sys.argv[1:] if argv is None else argv)}:  # seconds, which no other run needs to spend
        parser.epilog = _taught_times(parser)
    options = parser.parse_args(argv)
    refuse_with(parser, options, "quick", CELL_OPTIONS)
    if options.steps is not None and options.steps < WARMUP_STEPS + 2 and "stationary" in options.kinds:
        parser.error(f"--steps {options.steps}: a stationary cell needs {WARMUP_STEPS + 2}, of which {WARMUP_STEPS} warm up")
    prepare(parser, options.results)
    return options


def _taught_times(parser: argparse.ArgumentParser) -> str:
    """The help's text with the times of a default run."""
    given = argparse.Namespace(**{name: parser.get_default(name) for name in (*CELL_OPTIONS, "churn")}, quick=False)
    plan = [_as_it_will_be(each) for each in _plan(given)]
    keys = [cell for cell in plan if cell.mode in (AUTO, "partial-rollout", "sync-colocated")]

    def longest(mode: str, *, agentic: bool, shifts: bool) -> str:
        cells = [cell for cell in plan if (cell.mode, cell.agentic, cell.shifts) == (mode, agentic, shifts)]
        times = [real_seconds(cell) for cell in cells]
        return f"{round(min(times) / 60)} to {round(max(times) / 60)} min"

    def total(cells: list[Cell], *, with_agents: bool) -> str:
        return total_words(cell for cell in cells if with_agents or not cell.agentic)

    return HELP.format(
        nodes=given.nodes,
        single=longest(AUTO, agentic=False, shifts=False),
        single_shift=longest(AUTO, agentic=False, shifts=True),
        single_sync=words_of_time(max(real_seconds(cell) for cell in plan if not cell.agentic)),
        agentic=longest(AUTO, agentic=True, shifts=False),
        agentic_shift=longest(AUTO, agentic=True, shifts=True),
        agentic_sync=words_of_time(max(real_seconds(cell) for cell in plan)),
        all=total(plan, with_agents=True),
        all_single=total(plan, with_agents=False),
        keys=total(keys, with_agents=True),
        keys_single=total(keys, with_agents=False),
    )


def _plan(options: argparse.Namespace) -> Iterator[Planned]:
    """Cells in the order in which they are played: modes that are compared come in turn, so that other load hits both."""
    if options.quick:
        yield Planned("multiplexed", QUICK, options.churn)
        return
    for workload in options.workloads:
        agentic = workload == "agentic"
        for kind in options.kinds:
            for ratio in options.ratios:
                base = _base(options, 1 / ratio, agentic=agentic, shifts=kind == "shifting")
                yield from (Planned(way, base, options.churn) for way in options.modes)
        if options.churn is None and AUTO in options.modes:
            yield Planned(AUTO, _base(options, 1 / CHURN_RATIO, agentic=agentic, shifts=False), CHURN_SECONDS)


def _base(options: argparse.Namespace, ratio: float, *, agentic: bool, shifts: bool) -> Cell:
    time_scale = options.time_scale * min(1.0, CARRIED_NODES / options.nodes) * (AGENTIC_TIME_SCALE if agentic else 1.0)
    return Cell(
        "base",
        "multiplexed",
        nodes=options.nodes,
        ratio=ratio,
        agentic=agentic,
        shifts=shifts,
        steps=options.steps or (AGENTIC_STEPS if agentic else STEPS),
        episode_scale=options.episode_scale,
        time_scale=time_scale,
        buckets=min(options.nodes, 8) if agentic else 1,
    )


def _play(planned: Planned, cell: Cell, options: argparse.Namespace, say: object) -> Result:
    assert callable(say)
    churn = planned.churn_seconds
    keep = None if options.keep is None else options.keep / (cell.run if churn is None else f"{cell.run}-churn")
    limit = max(LEAST_LIMIT_SECONDS, LIMIT_TIMES * real_seconds(cell))
    played = uvloop.run(play(cell, say=say, churn_seconds=churn, limit_seconds=limit, keep=keep))
    if churn is None and (silent := nodes_given_up(played.events)):
        raise RuntimeError(f"disturbed: {silent} nodes fell silent, so this machine is too busy to say anything; play it again")
    warmup = 1 if cell.shifts or options.quick else WARMUP_STEPS
    figures = figures_of(cell, played.events, warmup)
    return Result(planned.way, cell, figures, *_harness(played), _predicted(cell, warmup, options), churn is not None)


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
