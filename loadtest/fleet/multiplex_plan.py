"""Which cells of the grid are played over real services and which in virtual time, and how long that takes. Pure.

The whole grid over real services takes half a day, with every mode more than a day, so as long as nobody asks for that a few of
its cells are ``timed``, and all of them are simulated: how far the simulator is off is measured with the timed ones of it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from seamlessflow.config.training_sections import MAX_BUCKETS

from .constants import AGENTIC_TIME_SCALE, BUCKETS_PER_NODE, CARRIED_NODES, CHURN_SECONDS
from .estimate import real_seconds, virtual_seconds, words_of_time
from .timed_cell import Cell
from .timed_modes import AUTO, SPLIT, SYNC

QUICK = Cell("quick", "multiplexed", nodes=2, steps=3, groups_per_node=1, episode_scale=1, time_scale=400.0)
"""What ``--quick`` plays, and simulates: two nodes, three steps of two groups."""
STEPS, AGENTIC_STEPS = 16, 10
"""Of each timed cell, where none is asked for. Steps of agents take ten times as long to play."""
FEW_STEPS, FEW_AGENTIC_STEPS = 9, 7
"""Of each, where only a few cells are timed."""
VIRTUAL_STEPS, VIRTUAL_SHIFTING_STEPS = 12, 24
"""Of each simulated cell. Of one that shifts the whole run counts, also what was rolled out ahead of its last step: a third of
ten steps."""
VIRTUAL_EPISODE_SCALE = 1
CHURN_RATIO = 2.5
"""Of the cells in which a node dies and another joins each minute, where all others are played without."""
TIMED_RATIO = 2.5
"""Of the few cells that are timed, rollout over training work; where that is not asked for it is the middle one."""
KEY_MODES = (AUTO, SPLIT, SYNC)
"""Those that figures are of. Of these a few are timed, of agents the first alone."""


@dataclass(frozen=True)
class Planned:
    """One cell to be played. ``base``: its fleet and workload; the mode is not in it yet."""

    way: str
    base: Cell
    churn_seconds: float | None = None
    """Between two deaths of a node: real ones of a timed cell, virtual ones of a simulated one. None: nobody dies."""
    is_virtual: bool = False

    @property
    def seconds(self) -> float:
        """Real ones that it takes, within a half; a virtual one on one core."""
        cell = replace(self.base, mode=self.way)  # its split is not searched for
        return virtual_seconds(cell) if self.is_virtual else real_seconds(cell)


@dataclass(frozen=True)
class Plan:
    """``timed`` ones first, one after the other; then virtual ones, as many side by side as there are cores."""

    timed: tuple[Planned, ...]
    virtual: tuple[Planned, ...]

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.timed) + sum(each.seconds for each in self.virtual) / num_workers()

    @property
    def words(self) -> str:
        """How many cells, and how long they take."""
        said = [f"{len(cells)} {kind}" for cells, kind in ((self.timed, "timed"), (self.virtual, "simulated")) if cells]
        count = len(self.timed) + len(self.virtual)
        return f"{' and '.join(said)} cell{'s' * (count != 1)}, about {words_of_time(self.seconds)}"


def num_workers() -> int:
    """Cells that are simulated side by side."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def plan_of(options: argparse.Namespace) -> Plan:
    """Modes that are compared come in turn, so that other load hits both."""
    if options.quick:
        quick = Planned("multiplexed", QUICK)
        return Plan((quick,), (replace(quick, is_virtual=True),))
    if options.timed_all:
        return Plan(tuple(_all_timed(options)), ())
    timed = () if options.no_timed else tuple(_few_timed(options))
    return Plan(timed, tuple(_virtual(options)))


def _all_timed(options: argparse.Namespace) -> Iterator[Planned]:
    for workload in options.workloads:
        agentic = workload == "agentic"
        for kind in options.kinds:
            for ratio in options.ratios:
                base = timed_base(options, 1 / ratio, agentic=agentic, shifts=kind == "shifting")
                yield from (Planned(way, base, options.churn) for way in options.modes)
        if options.churn is None and AUTO in options.modes:
            yield Planned(AUTO, timed_base(options, 1 / CHURN_RATIO, agentic=agentic, shifts=False), CHURN_SECONDS)


def _few_timed(options: argparse.Namespace) -> Iterator[Planned]:
    """At one ratio: of single turns what figures are of, of agents auto; and one with churn."""
    ratio = TIMED_RATIO if TIMED_RATIO in options.ratios else options.ratios[len(options.ratios) // 2]
    shifts = "stationary" not in options.kinds
    for workload in options.workloads:
        agentic = workload == "agentic"
        steps = options.steps or (FEW_AGENTIC_STEPS if agentic else FEW_STEPS)
        base = replace(timed_base(options, 1 / ratio, agentic=agentic, shifts=shifts), steps=steps)
        ways = [way for way in (KEY_MODES[:1] if agentic else KEY_MODES) if way in options.modes]
        yield from (Planned(way, base) for way in ways)
        if AUTO in ways and workload == options.workloads[0]:
            yield Planned(AUTO, replace(base, shifts=False), CHURN_SECONDS)


def _virtual(options: argparse.Namespace) -> Iterator[Planned]:
    """Each mode of each cell; and of each workload, single turn and agentic, one of auto with nodes that die and join."""
    for workload in options.workloads:
        agentic = workload == "agentic"
        for kind in options.kinds:
            for ratio in options.ratios:
                base = virtual_base(options, 1 / ratio, agentic=agentic, shifts=kind == "shifting")
                yield from (Planned(way, base, is_virtual=True) for way in options.modes)
        if AUTO in options.modes:
            base = virtual_base(options, 1 / CHURN_RATIO, agentic=agentic, shifts=False)
            yield Planned(AUTO, base, CHURN_SECONDS * _time_scale(options, agentic), is_virtual=True)


def virtual_base(options: argparse.Namespace, ratio: float, *, agentic: bool, shifts: bool) -> Cell:
    """Fleet and workload of a simulated cell."""
    return Cell(
        "base",
        "multiplexed",
        nodes=options.nodes,
        ratio=ratio,
        agentic=agentic,
        shifts=shifts,
        steps=options.steps or (VIRTUAL_SHIFTING_STEPS if shifts else VIRTUAL_STEPS),
        episode_scale=VIRTUAL_EPISODE_SCALE,
        buckets=min(BUCKETS_PER_NODE * options.nodes, MAX_BUCKETS),
    )


def timed_base(options: argparse.Namespace, ratio: float, *, agentic: bool, shifts: bool) -> Cell:
    """Fleet and workload of a timed cell."""
    return Cell(
        "base",
        "multiplexed",
        nodes=options.nodes,
        ratio=ratio,
        agentic=agentic,
        shifts=shifts,
        steps=options.steps or (AGENTIC_STEPS if agentic else STEPS),
        episode_scale=options.episode_scale,
        time_scale=_time_scale(options, agentic),
        buckets=min(options.nodes, 8) if agentic else 1,
    )


def _time_scale(options: argparse.Namespace, agentic: bool) -> float:
    """Modelled seconds in a real one of a timed cell: fewer where this machine has more to carry."""
    scale: float = options.time_scale * min(1.0, CARRIED_NODES / options.nodes)
    return scale * (AGENTIC_TIME_SCALE if agentic else 1.0)
