"""How well a fleet is used: our policies and those of others, over real services on timed devices and in virtual time.

    ways (ours, baselines) x training over rollout work x single turn or agentic x stationary or shifting

Only scheduling differs: the same tasks, the same cost model, baselines are policies over the same services. A *timed* cell is a
whole run over a nats-server of its own, its figures computed from its journal. A *simulated* one is the scheduler's own code in
virtual time. Every cell and every figure says which it is, and the simulated ones how far off the simulator is.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import uvloop
from rich.console import Console

from loadtest.report import publish
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import Service
from seamlessflow.telemetry import configure_logging

from .constants import CARRIED_NODES, CHURN_SECONDS, EPISODE_SCALE, MOST_EPISODE_SCALE, RATIOS, TIME_SCALE
from .multiplex_help import help_text
from .multiplex_plan import (
    AGENTIC_STEPS,
    CHURN_RATIO,
    FEW_AGENTIC_STEPS,
    FEW_STEPS,
    KEY_MODES,
    STEPS,
    VIRTUAL_SHIFTING_STEPS,
    VIRTUAL_STEPS,
    Plan,
    Planned,
    num_workers,
    plan_of,
)
from .multiplex_report import figures_of, missing
from .multiplex_results import Result, keep, print_summary, words_of
from .options import (
    KINDS,
    RATIO_WORDS,
    WORKLOADS,
    number,
    numbers,
    prepare,
    refuse_unless,
    refuse_with,
    taught,
    whole,
    words,
)
from .timed_cell import Cell
from .timed_figures import WARMUP_STEPS, nodes_given_up
from .timed_figures import figures_of as timed_figures_of
from .timed_modes import AUTO, WAYS, cell_of, simulated
from .timed_run import Played, play
from .virtual_cell import end_all, played_apart

LEAST_LIMIT_SECONDS, LIMIT_TIMES = 3600.0, 4
"""Real seconds after which a timed cell is given up: an hour, or so many times what it should take."""
CELL_OPTIONS = (
    "nodes",
    "steps",
    "modes",
    "ratios",
    "workloads",
    "kinds",
    "time_scale",
    "episode_scale",
    "timed_all",
    "no_timed",
)
TIMED_OPTIONS = ("time_scale", "episode_scale", "keep")


def main(argv: list[str] | None = None) -> None:
    options = _options(argv)
    configure_logging(Settings(log_level="warning", instance="multiplex"), Service.USER)
    console = Console(highlight=False, width=190)
    results: list[Result] = []
    wrong: list[str] = []
    plan = plan_of(options)
    console.print(f"{plan.words}, on {num_workers()} cores and nothing beside it")

    def take(name: str, play_it: Callable[[], Result]) -> None:
        try:
            results.append(play_it())
        except (RuntimeError, TimeoutError, ValueError) as failure:
            wrong.append(f"{name}: {type(failure).__name__}: {failure}")
            console.print(f"{name} FAILED: {wrong[-1]}", markup=False)
            return
        console.print(f"{name}: {results[-1].how}: {words_of(results[-1])}", markup=False)
        keep(results, options.results)

    _play_timed(plan, options, take)
    _simulate(plan, options, take)
    print_summary(console, results, wrong)
    figures = figures_of(results, strict=not options.quick)
    if figures:
        publish("multiplex", figures, options.results)
    for key, needs in missing(figures).items():
        console.print(f"not measured: {key} (needs {needs})")
    console.print(f"every cell: {keep(results, options.results)}")
    if wrong:
        sys.exit(1)


Take = Callable[[str, Callable[[], Result]], None]
"""Told of each cell: its name, and how its result is had."""


def _play_timed(plan: Plan, options: argparse.Namespace, take: Take) -> None:
    """One after the other, and nothing beside them: they have this machine to themselves."""
    for place, planned in enumerate(plan.timed, start=1):
        cell = planned.base if options.quick else cell_of(planned.way, planned.base)
        name = f"[{place}/{len(plan.timed)} timed] {cell.run} (gang {cell.train_nodes} of {cell.nodes}{_churn_words(planned)})"
        take(name, lambda planned=planned, cell=cell, name=name: _play(planned, cell, options, name))  # type: ignore[misc]


def _simulate(plan: Plan, options: argparse.Namespace, take: Take) -> None:
    """One on each core: what time it is outside is nothing to them."""
    with ThreadPoolExecutor(num_workers()) as pool:
        jobs = {pool.submit(_play_virtual, planned, options): planned for planned in plan.virtual}
        try:
            for place, job in enumerate(as_completed(jobs), start=1):
                planned = jobs[job]
                name = f"[{place}/{len(jobs)} simulated] {replace(planned.base, mode=planned.way).run}{_churn_words(planned)}"
                take(name, job.result)
        except BaseException:  # Ctrl-C: else the pool would play all that are left before it lets go
            end_all()
            raise


def _churn_words(planned: Planned) -> str:
    return "" if planned.churn_seconds is None else f", a node dies each {planned.churn_seconds:g} s"


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = taught(__doc__, "")
    which = parser.add_argument_group("which cells are timed").add_mutually_exclusive_group()
    which.add_argument(
        "--timed-all",
        action="store_true",
        help="every cell over real services, none simulated: half a day, with every mode more than a day",
    )
    which.add_argument("--no-timed", action="store_true", help="none: the simulator's error is not measured, either")
    parser.add_argument("--nodes", type=whole(2), default=8, metavar="N", help="of the fleet (8)")
    parser.add_argument(
        "--steps",
        type=whole(3),
        metavar="N",
        help=f"of each (timed {FEW_STEPS}, agentic {FEW_AGENTIC_STEPS}; simulated {VIRTUAL_STEPS}, shifting "
        f"{VIRTUAL_SHIFTING_STEPS}; with --timed-all {STEPS}, agentic {AGENTIC_STEPS}); of a stationary one the first "
        f"{WARMUP_STEPS} are not counted",
    )
    for name, allowed, given in (
        ("--modes", tuple(WAYS), KEY_MODES),
        ("--workloads", WORKLOADS, WORKLOADS),
        ("--kinds", KINDS, KINDS),
    ):
        every = "all" if given == allowed else ",".join(given)
        parser.add_argument(
            name,
            type=words(allowed),
            default=list(given),
            metavar="WORD,...",
            help=f"of {', '.join(allowed)} ({every})",
        )
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
        default=TIME_SCALE,
        metavar="N",
        help=f"modelled seconds in a real one ({TIME_SCALE:g}); agentic a third of it, and slower with more than "
        f"{CARRIED_NODES} nodes",
    )
    parser.add_argument(
        "--episode-scale",
        type=whole(1, MOST_EPISODE_SCALE),
        default=EPISODE_SCALE,
        metavar="N",
        help=f"episodes of the fleet that one timed episode stands for ({EPISODE_SCALE}; most {MOST_EPISODE_SCALE})",
    )
    parser.add_argument(
        "--churn",
        type=number(0, above=True),
        metavar="SECONDS",
        help="with --timed-all: in every cell a node dies and another joins so often, in real seconds; without it one cell "
        f"({AUTO}, 1:{CHURN_RATIO:g}) has {CHURN_SECONDS:.0f}",
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where logs and journals of the timed services stay")
    if {"-h", "--help"} & {*(sys.argv[1:] if argv is None else argv)}:  # seconds, which no other run needs to spend
        defaults = {name: parser.get_default(name) for name in (*CELL_OPTIONS, "churn")}
        parser.epilog = help_text(argparse.Namespace(**defaults, quick=False))
    options = parser.parse_args(argv)
    refuse_with(parser, options, "quick", (*CELL_OPTIONS, "churn"))
    refuse_with(parser, options, "no_timed", TIMED_OPTIONS)
    refuse_unless(parser, options, "timed_all", ("churn",))
    if options.steps is not None and options.steps < WARMUP_STEPS + 2 and "stationary" in options.kinds:
        parser.error(f"--steps {options.steps}: a stationary cell needs {WARMUP_STEPS + 2}, of which {WARMUP_STEPS} warm up")
    prepare(parser, options.results)
    return options


def _play(planned: Planned, cell: Cell, options: argparse.Namespace, name: str) -> Result:
    churn = planned.churn_seconds
    keep = None if options.keep is None else options.keep / (cell.run if churn is None else f"{cell.run}-churn")
    limit = max(LEAST_LIMIT_SECONDS, LIMIT_TIMES * planned.seconds)
    report = lambda what: print(f"{name}: {what}", file=sys.stderr, flush=True)  # noqa: E731
    played = uvloop.run(play(cell, report=report, churn_seconds=churn, limit_seconds=limit, keep=keep))
    if churn is None and (silent := nodes_given_up(played.events)):
        raise RuntimeError(f"disturbed: {silent} nodes fell silent, so this machine is too busy to say anything; play it again")
    warmup = warmup_of(cell, options)
    figures = timed_figures_of(cell, played.events, warmup)
    predicted = _predicted(cell, warmup) if churn is None else None
    return Result(planned.way, cell, figures, *_harness(played), predicted, churn is not None)


def _play_virtual(planned: Planned, options: argparse.Namespace) -> Result:
    churn = planned.churn_seconds
    cell, figures = played_apart(planned.way, planned.base, warmup_of(planned.base, options), churn)
    return Result(planned.way, cell, figures, 0.0, 0.0, [], churned=churn is not None, is_virtual=True)


def warmup_of(cell: Cell, options: argparse.Namespace) -> int:
    """Steps that are not counted. One, where a cell with churn has as few as those of a workload that shifts may have."""
    return 1 if cell.shifts or options.quick or cell.steps < WARMUP_STEPS + 2 else WARMUP_STEPS


def _predicted(cell: Cell, warmup: int) -> float:
    """Tokens a second of the very cell, coarse sequences and all, in virtual time."""
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


if __name__ == "__main__":
    main()
