"""What the cost model allows over a fixed split."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.fleet.allowed import Loads, lines, over_best_split
from loadtest.fleet.workloads import REASONING, Lengths, shifting

SHORT = replace(REASONING, answers=Lengths(400, 0.8, 4_000), group_size=4)

seconds = st.floats(0.01, 100.0)


@given(seconds, seconds, st.integers(2, 300))
def test_no_split_is_faster_than_a_fleet_that_is_always_busy(rollout: float, train: float, nodes: int) -> None:
    """And of a split the best one is."""
    loads = Loads(rollout, train)
    best = loads.split(nodes, loads.best_split(nodes))

    assert best >= loads.ideal(nodes) * (1 - 1e-9)
    assert best == min(loads.split(nodes, split) for split in range(1, nodes))


def test_a_split_that_divides_the_work_evenly_loses_nothing() -> None:
    """Two of eight nodes where a quarter of the work is training; at 1:2.5 an eighth is lost, as ADR 9 says."""
    assert Loads(3.0, 1.0).split(8, 2) == pytest.approx(Loads(3.0, 1.0).ideal(8))
    uneven = Loads(2.5, 1.0)
    assert uneven.split(8, uneven.best_split(8)) / uneven.ideal(8) == pytest.approx(8 / 7, rel=0.01)


def test_in_a_large_fleet_some_split_is_nearly_ideal() -> None:
    """So less is asked for there."""
    assert over_best_split(SHORT, 64, 1 / 2.5) < over_best_split(SHORT, 8, 1 / 2.5)
    assert over_best_split(SHORT, 64, 1 / 2.5) == pytest.approx(1.0, abs=0.03)


def test_where_lengths_grow_more_is_allowed_than_where_they_stay() -> None:
    """Since the split of the start is wrong in the end."""
    long_prompt = replace(SHORT, first_prompt=2_000)
    assert over_best_split(shifting(long_prompt), 64, 1.0) > over_best_split(long_prompt, 64, 1.0) + 0.05


def test_every_workload_has_a_line() -> None:
    """Single turn and agentic, stationary and shifting."""
    assert [line.split()[0] for line in lines(8)[1:]] == ["reasoning", "reasoning-shifting", "agentic", "agentic-shifting"]
