"""What ``--help`` of load:multiplex teaches besides its options, with the times of what can be asked for."""

from __future__ import annotations

import argparse
from dataclasses import replace

from .estimate import real_seconds, words_of_time
from .multiplex_plan import KEY_MODES, TIMED_RATIO, Plan, plan_of, timed_base
from .options import MODES_HELP
from .timed_modes import AUTO, SPLIT, WAYS

HELP = f"""\
A cell is one whole run: a fleet x a workload x a kind x a ratio of rollout to training work x a mode.
  workloads  single (one long answer each) · agentic (turns with tools that have a heavy tail of latencies)
  kinds      stationary · shifting (answers get three times as long over the run; the split stays what was best at its start)
  ratios     rollout over training work: 2.5 is 1:2.5
  timed      real services, real JetStream, hand-overs and all, on devices that take the time that devices would take; time goes
             30 times as fast (agents: 10), and one episode stands for 16, so that a node holds few agents: caches are hit less
  simulated  the scheduler's own code in virtual time, for single episodes

{MODES_HELP}

Without options all cells of the grid are simulated, and a few of them timed: at 1:{TIMED_RATIO:g} {", ".join(KEY_MODES)} of
single turns, {AUTO} of agents, {AUTO} once more (single turn) while a node dies and another joins each minute. Simulated,
{AUTO} is played with nodes that die and join once for single turns and once for agents. So every key is printed, and with each
simulated one how far the simulator was off in the timed cells of this very run.

What is printed: for each cell a line (timed or simulated, tokens a second, share of the bound of the cost model, busy and
hand-over shares, what moved, staleness, what was lost; of a timed one how much of this machine it took, of a simulated one what
is missing from the bound, by cause), tables of all cells, cells that failed, then the figures with goal and verdict, each with
"how".
FOLDER/multiplex.json and FOLDER/multiplex_cells.json have the same; the latter grows with every cell.
  throughput_vs_sync_colocated          auto over sync-colocated, stationary: mean of the ratios
  throughput_vs_best_split_stationary   auto over partial-rollout with its best split: mean of the ratios; its goal is 1.05, and
                                        1.0 from 64 nodes on
  throughput_vs_best_split_shifting     auto over the split that was best at the start
  busy_share                            of the node that was least busy, in the cell where that is least
  handover_share, throughput_vs_bound   of the cell where it is worst
  lost_or_repeated_tokens               over every cell, timed or simulated; nodes die and join in a timed and a simulated one
                                        of single turns, and in a simulated one of agents
  ..._agentic                           each of them where agents play
  ..._timed                             the same of the timed cells alone, where KEY itself is simulated
  simulator_error                       the simulator against the timed cells: where it was furthest off

How long, with {{nodes}} nodes on two cores and nothing beside it (said again before the first cell):
  as it stands           {{all}}
  --no-timed             {{no_timed}}
  --timed-all            {{timed_all}}
  a timed cell           single turn {{single}}, agentic {{agentic}}; of a synchronous mode twice as long
  every mode simulated   {{modes}} (--no-timed --modes all of them)

Examples:
  ./task load:multiplex                                                 every key
  ./task load:multiplex -- --workloads single                           every key of single turns
  ./task load:multiplex -- --no-timed --modes {",".join(WAYS)}
  ./task load:multiplex -- --no-timed --nodes 64 --modes {AUTO},{SPLIT} --workloads single --kinds stationary --ratios 2.5
  ./task load:multiplex -- --timed-all --ratios 2.5 --workloads single --kinds stationary     timed, a cell for each mode
  ./task load:multiplex -- --timed-all --nodes 64 --modes auto --ratios 2.5 --workloads single --kinds stationary --steps 8
  ./task load:multiplex -- --timed-all --modes auto --ratios 2.5 --workloads single --churn 30    a node dies every 30 seconds
"""


def help_text(given: argparse.Namespace) -> str:
    """The text with the times of a run with these options, which are the defaults."""

    def of(**changed: object) -> Plan:
        return plan_of(argparse.Namespace(**{**vars(given), **changed}))

    def minutes(*, agentic: bool) -> str:
        cells = [replace(timed_base(given, 1 / ratio, agentic=agentic, shifts=False), mode=AUTO) for ratio in given.ratios]
        times = [real_seconds(cell) for cell in cells]
        return f"{round(min(times) / 60)} to {round(max(times) / 60)} min"

    return HELP.format(
        nodes=given.nodes,
        all=of().words,
        no_timed=of(no_timed=True).words,
        timed_all=of(timed_all=True).words,
        single=minutes(agentic=False),
        agentic=minutes(agentic=True),
        modes=words_of_time(of(no_timed=True, modes=list(WAYS)).seconds),
    )
