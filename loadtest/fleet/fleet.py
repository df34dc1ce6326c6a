"""Large fleets: what a scheduling decision costs at 1,000 nodes, how busy they are, and whether the simulator can be believed.

    load:fleet                                  the figures
    load:fleet -- --only busy --nodes 100       of another size; of some parts alone
    load:fleet -- --grid      also every mode x ratio of training to rollout x workload, at 8, 64 and 1,000 nodes (hours)

Virtual time, the scheduler's own pure code. ``simulator_error`` compares with runs of real services in scaled time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import uvloop

from loadtest.report import Figure, publish
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import Service
from seamlessflow.telemetry import configure_logging

from .constants import RATIOS
from .estimate import real_seconds, words_of_time
from .fleet_busy import GROUPS_PER_NODE, RATIO, STEPS, busy_figures, scene_of
from .fleet_decision import LOOKS_A_STEP, Decisions, measured
from .fleet_grid import Choice, print_grid
from .options import (
    KINDS,
    MODES_HELP,
    RATIO_WORDS,
    WORKLOADS,
    numbers,
    prepare,
    refuse_unless,
    refuse_with,
    taught,
    whole,
    wholes,
    words,
)
from .simulator_account import Outcome
from .timed_cell import Cell
from .timed_figures import Figures, figures_of, nodes_given_up
from .timed_modes import WAYS, simulated
from .timed_run import play

DECISION_STEPS = 4
LARGE = 1000
LEAST_NODES = 4
EPISODES_PER_NODE = 100
"""In flight, where decisions are timed."""
PARTS = ("decisions", "busy", "timed")
_CHECK = Cell("check", "", nodes=8, ratio=RATIO, steps=16)
TIMED: Mapping[str, Cell] = {
    name: replace(_CHECK, mode=f"check-{name}", policy=name, train_nodes=train_nodes)
    for name, train_nodes in (("disaggregated", 3), ("multiplexed", 3), ("auto", 8))
}
"""What is played in scaled time and simulated, too: each way to share a fleet that nobody but us has, and a fixed split."""
WARMUP_STEPS = 4
ERROR_GOAL = 0.05
OTHER_SECONDS = 1080.0
"""Real ones of what is not played: decisions and a thousand nodes."""
PROMISED = ("decision_p99_ms_1000_nodes", "decision_memory_mb_1000_nodes", "simulator_error", "busy_share_1000_nodes")
LARGE_OPTIONS = ("nodes", "groups_per_node", "busy_steps", "only")
GRID_OPTIONS = ("sizes", "steps", "workloads", "kinds", "ratios", "modes")
HELP = f"""\
What is printed, and written to FOLDER/fleet.json, each with its goal and whether that is met:
  decision_p99_ms_1000_nodes     99th percentile of one decision (an event and all that is due after it, a look at the fleet,
                                 the policy, the leases that change) at 1,000 nodes and 100,000 episodes in flight; CPU time
  decision_changing_p99_ms_...   of those decisions alone that said or changed something
  decision_gc_pause_ms_...       the longest pause of the interpreter's garbage collection among them
  decision_memory_mb_1000_nodes  of a process that holds nothing but the scheduler and that run
  busy_share_1000_nodes          share of its time in which the least busy node samples or trains: auto, simulated, after 5 of
                                 10 steps
  busy_share_mean_1000_nodes     the same of all nodes
  handover_share_1000_nodes      of all nodes' time; lost_or_repeated_tokens_1000_nodes: over that whole run
  simulator_error                tokens a second simulated against timed (real services, real JetStream, devices that take the
                                 time a device would take), as a share: the worst of the modes that are played
  simulator_error_MODE           the same of one mode: {", ".join(TIMED)}

Keys have the number of nodes of --nodes; goals of decisions are named for 1,000.

How long: decisions 3 min, 1,000 nodes 15 min (virtual time, one process), each timed run {{timed}}: {{all}} in all.

A cell of the grid is one simulated run: a size of the fleet x a workload (single turn: reasoning; agentic: turns with tools in
between) x a kind (stationary; shifting: answers get three times as long over the run) x a ratio of rollout to training work x a
mode. A cell of 8 nodes takes half a minute (agentic: a minute), where a split is searched for four times that; of 64 nodes two
to ten minutes, of 1,000 nodes a quarter of an hour and more. All of 8 nodes: 5 h. FOLDER/fleet_grid.json keeps every cell.

{MODES_HELP}

Examples:
  ./task load:fleet                                                     the figures
  ./task load:fleet -- --no-timed                                       without the timed runs (simulator_error)
  ./task load:fleet -- --only busy --nodes 100                          one part, of another size: a minute
  ./task load:fleet -- --only busy --nodes 10000 --groups-per-node 1 --busy-steps 4    10,000 nodes; several GB
  ./task load:fleet -- --grid --sizes 8 --ratios 2.5 --kinds stationary      a table of fourteen cells
  ./task load:fleet -- --grid --sizes 64 --modes auto,partial-rollout --workloads agentic
"""


def compare(simulated_run: Outcome, timed_run: Figures, episode_scale: int = 1) -> float:
    """How far the simulator is off: the difference of tokens a second, as a share of the timed run's.

    Each token counts as far as its work was done in the window, as in every other figure: what a few steps trained on also
    says how many batches happened to wait before and after them. episode_scale: how many episodes one of the timed run
    stands for (the simulated one had the same).
    """
    return abs(simulated_run.throughput * episode_scale / timed_run.throughput - 1.0)


def main(argv: list[str] | None = None) -> None:
    options = _options(argv)
    configure_logging(Settings(log_level="warning", instance="fleet"), Service.USER)
    played: Mapping[str, Callable[[argparse.Namespace], dict[str, Figure]]] = {
        "decisions": _decision_figures,
        "busy": _busy_figures,
        "timed": _error_figures,
    }
    figures: dict[str, Figure] = {}
    for part in options.only:
        if not (part == "timed" and options.no_timed):
            figures |= played[part](options)
    publish("fleet", figures, options.results)
    for key in PROMISED:
        if key not in figures:
            print(f"not measured: {key} (--no-timed, --only or --nodes)")
    if options.grid:
        print_grid(options.sizes, options.steps, options.results, _choice(options))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    timed = sum(real_seconds(cell) for cell in TIMED.values())
    told = HELP.format(timed=words_of_time(timed / len(TIMED)), all=words_of_time(timed + OTHER_SECONDS))
    parser = taught(__doc__, told)
    parser.add_argument("--no-timed", action="store_true", help="no runs of real services to compare the simulator with")
    parser.add_argument("--grid", action="store_true", help="also a table of modes, ratios and workloads; the options below")
    large = parser.add_argument_group("the large fleet")
    large.add_argument("--nodes", type=whole(LEAST_NODES), default=LARGE, metavar="N", help=f"of it ({LARGE})")
    large.add_argument(
        "--groups-per-node",
        type=whole(1),
        default=GROUPS_PER_NODE,
        metavar="N",
        help=f"of each step, where it is asked how busy it is ({GROUPS_PER_NODE}: a million episodes at {LARGE} nodes; with "
        "fewer, steps are so short that nodes idle)",
    )
    large.add_argument(
        "--busy-steps", type=whole(2), default=STEPS, metavar="N", help=f"the same; half of them are not counted ({STEPS})"
    )
    _add_list(large, "--only", PARTS)
    grid = parser.add_argument_group("cells of the grid (with --grid alone)")
    grid.add_argument("--sizes", type=wholes(2), default=[8, 64, 1000], metavar="NODES,...", help="fleets (8,64,1000)")
    grid.add_argument(
        "--steps", type=whole(3), default=24, metavar="N", help="of each cell, a third of which is not counted (24)"
    )
    _add_list(grid, "--workloads", WORKLOADS)
    _add_list(grid, "--kinds", KINDS)
    grid.add_argument(
        "--ratios",
        type=numbers(0, above=True),
        default=[1 / ratio for ratio in RATIOS],
        metavar="R,...",
        help=f"rollout over training work ({RATIO_WORDS})",
    )
    _add_list(grid, "--modes", tuple(WAYS))
    options = parser.parse_args(argv)
    refuse_unless(parser, options, "grid", GRID_OPTIONS)
    refuse_with(parser, options, "quick", ("grid", *LARGE_OPTIONS))
    prepare(parser, options.results)
    return options


def _add_list(group: argparse._ArgumentGroup, name: str, allowed: Sequence[str]) -> None:
    group.add_argument(
        name, type=words(allowed), default=list(allowed), metavar="WORD,...", help=f"of {', '.join(allowed)} (all)"
    )


def _choice(options: argparse.Namespace) -> Choice:
    return Choice(
        agentic=tuple(name == "agentic" for name in options.workloads),
        shifts=tuple(kind == "shifting" for kind in options.kinds),
        ratios=tuple(1 / ratio for ratio in options.ratios),
        modes=tuple(WAYS[way] for way in options.modes),
    )


def _decision_figures(options: argparse.Namespace) -> dict[str, Figure]:
    steps, looks = (1, 30) if options.quick else (DECISION_STEPS, LOOKS_A_STEP)
    name, nodes = options.nodes, 30 if options.quick else options.nodes
    episodes, goal = EPISODES_PER_NODE * nodes, 50.0 if name == LARGE else None
    smaller = max(LEAST_NODES, nodes // 10)
    large = measured(nodes, episodes, steps, looks)
    small = measured(smaller, EPISODES_PER_NODE * smaller, steps, looks)
    unsettled = measured(nodes, episodes, 1, looks, settles=False)
    _print_decisions(large)
    words = f"{small.nodes} nodes, {small.episodes} episodes; the longest {large.longest:.0f} ms"
    changing = f"the same there; {len(large.changing)} and {len(small.changing)} decisions"
    return {
        f"decision_p99_ms_{name}_nodes": Figure("ms", "lower", [large.p99], words, [small.p99], goal),
        f"decision_changing_p99_ms_{name}_nodes": Figure(
            "ms", "lower", [large.changing_p99], changing, [small.changing_p99], goal
        ),
        f"decision_gc_pause_ms_{name}_nodes": Figure(
            "ms", "lower", [large.longest_pause], "where nothing is settled", [unsettled.longest_pause], goal
        ),
        f"decision_memory_mb_{name}_nodes": Figure(
            "MB",
            "lower",
            [large.megabytes],
            "the process before it has a run",
            [large.megabytes_before],
            500.0 if name == LARGE else None,
        ),
    }


def _print_decisions(found: Decisions) -> None:
    print(
        f"{len(found.milliseconds)} decisions at {found.nodes} nodes and {found.episodes} episodes in flight, which changed "
        f"{found.num_changes} leases: median {median(found.milliseconds):.1f} ms, 99th percentile {found.p99:.1f}, longest "
        f"{found.longest:.1f}; the {len(found.changing)} that said or changed something: median {median(found.changing):.1f}, "
        f"99th percentile {found.changing_p99:.1f} (the interpreter's garbage collection is in these times, its longest pause "
        f"{found.longest_pause:.1f} ms); all that was due after one event took {max(found.answers):.0f} ms at most, in slices"
    )


def _busy_figures(options: argparse.Namespace) -> dict[str, Figure]:
    if options.quick:
        scene = scene_of(12, 2, steps=6, warmup_steps=3)
        return busy_figures(options.nodes, scene, scene)
    smaller = max(LEAST_NODES, options.nodes // 10)
    large, small = (
        scene_of(nodes, options.groups_per_node, options.busy_steps, options.busy_steps // 2)
        for nodes in (options.nodes, smaller)
    )
    return busy_figures(options.nodes, large, small)


def _error_figures(options: argparse.Namespace) -> dict[str, Figure]:
    """The worst of all modes that were played, and each beside it."""
    figures: dict[str, Figure] = {}
    for name, cell in TIMED.items():
        warmup = WARMUP_STEPS
        if options.quick:
            cell, warmup = _quick(cell), 1
        print(f"{name}: {cell.nodes} nodes, {cell.steps} steps in scaled time ...", file=sys.stderr, flush=True)
        played = uvloop.run(play(cell, report=lambda what: None, churn_seconds=None, limit_seconds=3600.0, keep=None))
        if silent := nodes_given_up(played.events):
            raise RuntimeError(f"{name}: disturbed: {silent} nodes fell silent, so this machine is too busy; play it again")
        figures |= error_figures(name, cell, simulated(cell, warmup), figures_of(cell, played.events, warmup))
    return figures | {"simulator_error": worst_of(figures)}


def _quick(cell: Cell) -> Cell:
    """Two nodes, four steps of a group each."""
    train_nodes = min(cell.train_nodes, 2) if cell.policy != "disaggregated" else 1
    return replace(cell, nodes=2, train_nodes=train_nodes, steps=4, groups_per_node=1, episode_scale=1, time_scale=400.0)


def error_figures(name: str, cell: Cell, virtual: Outcome, timed: Figures) -> dict[str, Figure]:
    """The key of one mode. Its words say which way it is off."""
    error = max(1e-6, compare(virtual, timed, cell.episode_scale))
    tokens = f"{timed.throughput:,.0f} tokens/s timed, {virtual.throughput * cell.episode_scale:,.0f} simulated"
    busy = f"busy {timed.busy:.1%} timed, {virtual.busy_share:.1%} simulated"
    return {f"simulator_error_{name}": Figure("", "lower", [error], f"{tokens}; {busy}", [1.0], ERROR_GOAL)}


def worst_of(figures: Mapping[str, Figure]) -> Figure:
    """One figure for all modes: that of the mode where the simulator is furthest off."""
    key = max(figures, key=lambda each: figures[each].value)
    words = f"the worst of {len(figures)} modes: {key.removeprefix('simulator_error_')}"
    return Figure("", "lower", [figures[key].value], words, [1.0], ERROR_GOAL)


if __name__ == "__main__":
    main()
