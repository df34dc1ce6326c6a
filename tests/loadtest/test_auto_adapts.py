"""Auto over a run in which answers grow: its gang follows the work, as no fixed one does."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest

from loadtest.fleet.baselines import modes
from loadtest.fleet.cost import Cost, cost_of
from loadtest.fleet.simulator import Scene, simulate
from loadtest.fleet.simulator_account import Doing
from loadtest.fleet.workloads import REASONING, Lengths, Workload, shifting, with_ratio, work_of

NODES, GROUPS, STEPS, SETTLED = 8, 32, 60, 20
"""From step ``SETTLED`` on the gang is what was measured, and no longer what a first guess made of it."""
STEADY = replace(REASONING, answers=Lengths(1_200, 0.5, 4_000), first_prompt=4_000, group_size=4)
"""Long prompts, which a trainer goes through and an engine hardly: the longer the answers, the less of all work is training."""
GROWING = shifting(STEADY)


def cost_for(workload: Workload) -> Cost:
    """Training is as much work as rollout at the beginning."""
    return with_ratio(cost_of(slots=8), workload, 1.0, GROUPS)


def ideal(workload: Workload, progress: float) -> float:
    """Nodes that should train."""
    work = work_of(workload, cost_for(workload), progress)
    return NODES * work.train_seconds / (work.rollout_seconds + work.train_seconds)


@cache
def gangs(workload: Workload, mode: str) -> list[int]:
    """Nodes that took each step of a run, from ``SETTLED`` on."""
    scene = Scene(NODES, workload, cost_for(workload), modes(NODES, 4)[mode], GROUPS, STEPS, with_spans=True)
    outcome = simulate(scene)
    trains = [span for span in outcome.spans if span.doing is Doing.TRAIN]
    return [sum(span.start < at <= span.end + 1e-6 for span in trains) for at in outcome.step_seconds[SETTLED:]]


def test_the_gang_shrinks_while_answers_grow() -> None:
    """To what is right in the end, which is more than a node less than what was right in the beginning."""
    sizes = gangs(GROWING, "auto")
    last = fmean(sizes[-SETTLED:])

    assert ideal(GROWING, 0.0) - ideal(GROWING, 1.0) > 1
    assert last < fmean(sizes[:SETTLED])
    assert last == pytest.approx(ideal(GROWING, 0.85), abs=0.6)


def test_the_gang_stays_where_answers_stay() -> None:
    """It goes to and fro between two sizes around the ideal share, and more nodes train in the end than where answers grew."""
    sizes = gangs(STEADY, "auto")

    assert max(sizes) - min(sizes) <= 1
    assert fmean(sizes) == pytest.approx(ideal(STEADY, 0.0), abs=0.6)
    assert fmean(sizes[-SETTLED:]) > fmean(gangs(GROWING, "auto")[-SETTLED:]) + 1


def test_a_fixed_split_does_not_follow() -> None:
    """Four nodes train to the end, whatever answers do."""
    assert set(gangs(GROWING, "partial rollout")) == {4}
