"""Large fleets: what a scheduling decision costs at 1,000 nodes, how busy they are, and whether the simulator can be believed.

    load:fleet                the figures
    load:fleet -- --grid      also every mode x ratio of training to rollout x workload, at 8, 64 and 1,000 nodes (hours)

Virtual time, the scheduler's own pure code. ``simulator_error`` compares with a run of real services in scaled time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import uvloop

from loadtest.report import Figure, arguments, publish
from seamlessflow.contracts import Service
from seamlessflow.settings import Settings
from seamlessflow.telemetry import configure_logging

from .baselines import modes
from .cost import cost_of
from .fleet_decision import LOOKS_A_STEP, Decisions, measured, p99_of
from .fleet_grid import print_grid
from .simulator import Scene, simulate
from .simulator_account import Outcome
from .timed_cell import Cell
from .timed_figures import Figures, figures_of
from .timed_modes import simulated
from .timed_run import play
from .workloads import REASONING, with_ratio

RATIO = 1 / 2.5
LARGE = 1000
LARGE_GROUPS_PER_NODE = 8
"""Of a step at 1,000 nodes: 128 episodes for each node, as Skywork-OR1 (see GROUPS_PER_NODE), so a million in one run."""
TIMED = Cell("check", "disaggregated", train_nodes=3, ratio=RATIO, steps=12, episode_scale=16, time_scale=30.0)
"""What is played in scaled time and simulated, too."""
WARMUP_STEPS = 4


def compare(simulated_run: Outcome, timed_run: Figures, episode_scale: int = 1) -> float:
    """How far the simulator is off: the difference of trained tokens a second, as a share of the timed run's.

    episode_scale: how many episodes one of the timed run stands for (the simulated one had the same).
    """
    return abs(simulated_run.trained_throughput * episode_scale / timed_run.trained_throughput - 1.0)


def main(argv: list[str] | None = None) -> None:
    options = _options(argv)
    configure_logging(Settings(log_level="warning", instance="fleet"), Service.USER)
    figures = _decision_figures(options) | _busy_figures(options)
    if not options.no_timed:
        figures |= _error_figures(options)
    publish("fleet", figures, options.results)
    if options.grid:
        print_grid([int(nodes) for nodes in options.sizes.split(",")], options.steps, options.results)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--no-timed", action="store_true", help="no run of real services to compare the simulator with")
    parser.add_argument("--grid", action="store_true", help="also the whole table of modes, ratios and workloads")
    parser.add_argument("--sizes", default="8,64,1000", help="fleets of the grid")
    parser.add_argument("--steps", type=int, default=24, help="of each cell of the grid, a third of which is not counted")
    return parser.parse_args(argv)


def _decision_figures(options: argparse.Namespace) -> dict[str, Figure]:
    steps, looks = (1, 30) if options.quick else (2, LOOKS_A_STEP)
    nodes, episodes = (30, 3_000) if options.quick else (LARGE, 100_000)
    large, small = measured(nodes, episodes, steps, looks), measured(nodes // 10, episodes // 10, steps, looks)
    _say(large)
    words = f"{small.nodes} nodes, {small.episodes} episodes; the longest {large.longest:.0f} ms"
    return {
        "decision_p99_ms_1000_nodes": Figure("ms", "lower", [large.p99], words, [small.p99], 50.0),
        "decision_memory_mb_1000_nodes": Figure(
            "MB", "lower", [large.megabytes], "the process before it has a run", [large.megabytes_before], 500.0
        ),
    }


def _say(found: Decisions) -> None:
    print(
        f"{len(found.milliseconds)} decisions at {found.nodes} nodes and {found.episodes} episodes in flight, which changed "
        f"{found.num_changes} leases: median {median(found.milliseconds):.1f} ms, 99th percentile {found.p99:.1f}, longest "
        f"{found.longest:.1f}; the {len(found.changing)} that said or changed something: median {median(found.changing):.1f}, "
        f"99th percentile {p99_of(found.changing):.1f} (the interpreter's garbage collection is in these times)"
    )


def _busy_figures(options: argparse.Namespace) -> dict[str, Figure]:
    nodes, steps, warmup = (12, 6, 3) if options.quick else (LARGE, 10, 5)
    groups = nodes * (2 if options.quick else LARGE_GROUPS_PER_NODE)
    cost = with_ratio(cost_of(), REASONING, RATIO, groups)
    scene = Scene(nodes, REASONING, cost, modes(nodes, 1)["auto"], groups, steps, warmup)
    outcome = simulate(scene)
    print(f"auto at {nodes} nodes, 1:{1 / RATIO:g}: {words_of(outcome)}")
    fewer = nodes // 10
    cost = with_ratio(cost_of(), REASONING, RATIO, groups // 10)
    small = (
        simulate(Scene(fewer, REASONING, cost, modes(fewer, 1)["auto"], groups // 10, steps, warmup)) if fewer > 1 else outcome
    )
    return {
        "busy_share_1000_nodes": Figure(
            "", "higher", [outcome.busy_share], f"the same at {fewer} nodes", [small.busy_share], 0.97
        )
    }


def words_of(outcome: Outcome) -> str:
    """An outcome in one line."""
    return (
        f"{outcome.throughput:,.0f} tokens/s, {outcome.over_bound:.3f} of the bound, busy {outcome.busy_share:.1%}, hand-over "
        f"{outcome.handover_share:.2%}, masked {outcome.masked_tokens / (outcome.trained_tokens + outcome.masked_tokens):.2%}, "
        f"lost or repeated {outcome.lost_or_repeated_tokens}, prefilled again {outcome.reprefilled_tokens:,}"
    )


def _error_figures(options: argparse.Namespace) -> dict[str, Figure]:
    cell, warmup = TIMED, WARMUP_STEPS
    if options.quick:
        cell = replace(cell, nodes=2, train_nodes=1, steps=4, groups_per_node=1, episode_scale=1, time_scale=400.0)
        warmup = 1
    played = uvloop.run(play(cell, say=lambda what: None, churn_seconds=None, limit_seconds=3600.0, keep=None))
    timed, virtual = figures_of(cell, played.events, warmup), simulated(cell, warmup)
    error = max(1e-6, compare(virtual, timed, cell.episode_scale))
    words = f"{timed.trained_throughput:,.0f} tokens/s timed, {virtual.trained_throughput * cell.episode_scale:,.0f} simulated"
    return {"simulator_error": Figure("", "lower", [error], words, [1.0], 0.05)}


if __name__ == "__main__":
    main()
