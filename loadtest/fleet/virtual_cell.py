"""A cell of the grid in virtual time, in a process of its own: its split is searched for, it is simulated, figures come back.

    python -m loadtest.fleet.virtual_cell < CELL.json        what ``played_apart`` runs; one line of JSON

An episode here is one, where a timed one stands for many: what is coarse there is fine here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, Self

from seamlessflow.local.child_processes import die_with_parent

from .baselines import HAS_SPLIT, best_split, modes
from .cell_figures import CellFigures
from .simulator import simulate
from .simulator_account import Outcome
from .simulator_churn import churn
from .timed_cell import Cell
from .timed_modes import SEARCH_STEPS, SEARCH_WARMUP, WAYS, scene_of


@dataclass(frozen=True)
class VirtualFigures(CellFigures):
    """One cell, and what only a simulator knows of it."""

    losses: Mapping[str, float]
    """Where the node-time went that is missing from the bound, as shares of all node-time."""
    split_throughputs: Mapping[str, float]
    """Where a split was searched for: nodes that train to tokens a second."""

    @classmethod
    def of(cls, outcome: Outcome, scale: int, warmup_steps: int, tried: Mapping[int, float]) -> Self:
        """scale: episodes that one of the simulated ones stands for."""
        tokens = sum(outcome.staleness.values())
        return cls(
            throughput=outcome.throughput * scale,
            all_throughput=outcome.all_throughput * scale,
            over_bound=outcome.over_bound,
            busy=outcome.busy_share,
            least_busy=outcome.least_busy_share,
            handover=outcome.handover_share,
            lost_or_repeated=outcome.lost_or_repeated_tokens * scale,
            reprefilled=outcome.reprefilled_tokens / max(1, outcome.all_tokens),
            moved=outcome.moved_generations * scale,
            staleness_mean=sum(age * count for age, count in outcome.staleness.items()) / max(1, tokens),
            staleness_max=max(outcome.staleness, default=0),
            masked=outcome.masked_tokens / max(1, outcome.trained_tokens + outcome.masked_tokens),
            step_seconds=outcome.seconds / (outcome.steps - warmup_steps),
            steps=outcome.steps,
            losses=outcome.losses,
            split_throughputs={str(split): each * scale for split, each in sorted(tried.items())},
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(**{each.name: document[each.name] for each in fields(cls)})


def played(way: str, base: Cell, warmup_steps: int, churn_seconds: float | None = None) -> tuple[Cell, VirtualFigures]:
    """The cell of a way with its best split, and what it came to. Where the workload shifts it is the best one at its start.

    churn_seconds: virtual ones between two deaths of a node; a split is searched for without any.
    """
    mode = modes(base.nodes, 1, base.max_staleness)[WAYS[way]]
    nodes = min(mode.train_nodes, base.nodes)
    cell = replace(base, mode=way, policy=mode.policy, max_staleness=mode.max_staleness, train_nodes=nodes)
    scene = replace(scene_of(cell, cell.workload, warmup_steps), mode=mode)
    tried: dict[int, float] = {}
    outcome = None
    if way in HAS_A_SPLIT:
        at_start = replace(scene, workload=replace(cell.workload, growth=1.0))
        if cell.shifts and cell.steps > SEARCH_STEPS:
            at_start = replace(at_start, steps=SEARCH_STEPS, warmup_steps=SEARCH_WARMUP)
        split, outcome, tried = best_split(at_start)
        cell = replace(cell, train_nodes=split)
        scene = replace(scene, mode=replace(mode, train_nodes=split))
    if churn_seconds is not None:
        outcome = simulate(replace(scene, changes=churn(cell.nodes, churn_seconds, seed=cell.seed)))
    elif outcome is None or cell.shifts:
        outcome = simulate(scene)
    return cell, VirtualFigures.of(outcome, cell.episode_scale, warmup_steps, tried)


_lock, _ends = threading.Lock(), threading.Event()
_running: set[subprocess.Popen[str]] = set()

HAS_A_SPLIT = frozenset(word for word, name in WAYS.items() if name in HAS_SPLIT)


def played_apart(way: str, base: Cell, warmup_steps: int, churn_seconds: float | None = None) -> tuple[Cell, VirtualFigures]:
    """The same in a process of its own, so that several can be played side by side. Raises RuntimeError with what it said."""
    cell = {"way": way, "cell": base.to_json(), "warmup_steps": warmup_steps, "churn_seconds": churn_seconds}
    asked = json.dumps(cell)
    command = [sys.executable, "-m", "loadtest.fleet.virtual_cell"]
    with _lock:
        if _ends.is_set():
            raise RuntimeError("ended before it began")
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        _running.add(process)
    try:
        answer, errors = process.communicate(asked)
    finally:
        _running.discard(process)
    if process.returncode:
        words = errors.strip().splitlines()
        raise RuntimeError(f"simulating {way} ended with {process.returncode}: {words[-1] if words else 'it said nothing'}")
    said = json.loads(answer)
    return Cell.from_json(said["cell"]), VirtualFigures.from_json(said["figures"])


def end_all() -> None:
    """Kill those that are being played, and begin no other: somebody wants to go."""
    with _lock:
        _ends.set()
        for process in tuple(_running):
            process.kill()


def main() -> None:
    asked = json.load(sys.stdin)
    cell, figures = played(asked["way"], Cell.from_json(asked["cell"]), asked["warmup_steps"], asked["churn_seconds"])
    print(json.dumps({"cell": cell.to_json(), "figures": asdict(figures)}))


if __name__ == "__main__":
    main()
