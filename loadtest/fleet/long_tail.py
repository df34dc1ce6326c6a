"""What starting expected-long generations first is worth: the same simulated runs with and without ``fleet.long_tail``.

    python -m loadtest.fleet.long_tail        8 nodes, training over rollout 1:2.5, under two minutes

Questions come again every second step, and half of the logarithm's variance of answer lengths is the question's, so that what
the scheduler has seen tells something. ``waves``: nodes with few slots, so that most generations of a step wait at first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from .baselines import modes
from .cost import cost_of
from .simulator import Scene, simulate
from .simulator_account import Outcome
from .workloads import REASONING, with_ratio

NODES, GROUPS, RATIO = 8, 64, 1 / 2.5
SPLIT = 2
"""Nodes that train: what multiplexed and the fixed splits come closest to the balance with."""


@dataclass(frozen=True, slots=True)
class Case:
    """``steps``: of which a third is not counted."""

    name: str
    mode: str
    slots: int
    steps: int


CASES = (
    Case("sync colocated, waves", "sync colocated", 32, 12),
    Case("sync disaggregated, waves", "sync disaggregated", 32, 12),
    Case("sync colocated", "sync colocated", 128, 12),
    Case("multiplexed", "multiplexed", 128, 30),
    Case("auto", "auto", 128, 30),
)


def scene_of(case: Case, long_tail: float | None, seed: int) -> Scene:
    """One run of a case."""
    workload = replace(REASONING, questions=2 * GROUPS, seed=seed)
    cost = with_ratio(cost_of(slots=case.slots), workload, RATIO, GROUPS)
    mode = modes(NODES, SPLIT)[case.mode]
    return Scene(NODES, workload, cost, mode, GROUPS, case.steps, case.steps // 3, long_tail=long_tail)


def compared(case: Case, long_tail: float, seeds: Sequence[int]) -> Iterator[str]:
    """One line without, one with it."""
    for tail in (None, long_tail):
        yield f"{case.name:26} long_tail {tail or '-':4} {words_of([simulate(scene_of(case, tail, seed)) for seed in seeds])}"


def words_of(outcomes: Sequence[Outcome]) -> str:
    """Means over runs."""

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    used = [o.trained_tokens + o.masked_tokens for o in outcomes]
    steps = [len(o.step_seconds) - len(o.step_seconds) // 3 for o in outcomes]
    return (
        f"{mean([o.throughput for o in outcomes]):8,.0f} tokens/s  bound {mean([o.over_bound for o in outcomes]):.3f}  "
        f"step {mean([o.seconds / n for o, n in zip(outcomes, steps, strict=True)]):6.1f} s  "
        f"masked {mean([o.masked_tokens / n for o, n in zip(outcomes, used, strict=True)]):.3f}  "
        f"moved {mean([o.moved_generations for o in outcomes]):6,.0f}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Simulate and print every case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long-tail", type=float, default=1.5)
    parser.add_argument("--seeds", type=int, default=2, help="runs of each case, with other lengths")
    options = parser.parse_args(argv)
    for case in CASES:
        for line in compared(case, options.long_tail, range(options.seeds)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
