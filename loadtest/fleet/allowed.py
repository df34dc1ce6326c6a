"""What the cost model allows at most, whatever a scheduler does: an ideal fleet over the best fixed split of whole nodes. Pure.

    python -m loadtest.fleet.allowed        seconds; nothing is simulated

Both sides are free of bubbles: the ideal fleet takes work over speed, R + T node-seconds on N nodes; a split of s nodes that
train and N - s that roll out takes the longer of R / (N - s) and T / s. Where lengths grow the split is the one that is best at
the start, and time is summed over the run, with as many tasks at each length. So a figure of ``load:multiplex`` against the
best split is above these only by the bubbles that a real split has.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from .constants import GROUPS_PER_NODE, RATIOS
from .cost import Cost, cost_of
from .workloads import AGENTIC, REASONING, Workload, shifting, with_ratio, work_of

POINTS = 13
"""Lengths that a run that shifts is summed over, from its beginning to its end: half as many as it has steps."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Node-seconds of one episode."""

    rollout: float
    train: float

    def ideal(self, nodes: int) -> float:
        """Seconds, with all nodes always busy."""
        return (self.rollout + self.train) / nodes

    def split(self, nodes: int, train_nodes: int) -> float:
        """Seconds, where so many nodes train and all others roll out."""
        return max(self.rollout / (nodes - train_nodes), self.train / train_nodes)

    def best_split(self, nodes: int) -> int:
        """Nodes that train."""
        return min(range(1, nodes), key=lambda train_nodes: self.split(nodes, train_nodes))


def loads_of(workload: Workload, cost: Cost, progress: float = 0.0) -> Loads:
    """Of a workload at some progress of a run."""
    work = work_of(workload, cost, progress)
    return Loads(work.rollout_seconds, work.train_seconds)


def over_best_split(workload: Workload, nodes: int, ratio: float) -> float:
    """How many times as fast as its best split an ideal fleet is. Of a workload that shifts: over the whole run."""
    cost = with_ratio(cost_of(), workload, ratio, nodes * GROUPS_PER_NODE)
    if workload.growth == 1.0:
        loads = [loads_of(workload, cost)]
    else:
        loads = [loads_of(workload, cost, point / (POINTS - 1)) for point in range(POINTS)]
    split = loads[0].best_split(nodes)
    return sum(each.split(nodes, split) for each in loads) / sum(each.ideal(nodes) for each in loads)


def lines(nodes: int) -> Sequence[str]:
    """A line for each workload: at every ratio, and the mean."""
    said = [f"{nodes} nodes, rollout over training work {', '.join(f'{1 / ratio:.3g}' for ratio in RATIOS)}"]
    for base in (REASONING, AGENTIC):
        for workload in (base, shifting(base)):
            each = [over_best_split(workload, nodes, ratio) for ratio in RATIOS]
            said.append(f"{workload.name:20} mean {fmean(each):.3f}   {'  '.join(f'{value:.3f}' for value in each)}")
    return said


def main(argv: Sequence[str] | None = None) -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=8)
    print("\n".join(lines(parser.parse_args(argv).nodes)))


if __name__ == "__main__":
    main()
