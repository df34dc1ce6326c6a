"""Nodes that come and go in virtual time: who dies when, and a cell that is played under it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.fleet.simulator import node_name
from loadtest.fleet.simulator_churn import churn
from loadtest.fleet.timed_cell import Cell
from loadtest.fleet.virtual_cell import played


@given(st.integers(1, 40), st.floats(1.0, 100.0), st.integers(0, 9))
def test_who_dies_was_there_and_as_many_are_there_afterwards(nodes: int, every_seconds: float, seed: int) -> None:
    """One at a time, each once, another in its place at the same moment."""
    living = {node_name(number) for number in range(nodes)}
    changes = churn(nodes, every_seconds, seed=seed, until=1000.0)
    for number, (death, birth) in enumerate(zip(changes[::2], changes[1::2], strict=True), start=1):
        assert death.at == birth.at == pytest.approx(number * every_seconds)
        assert death.node in living and not death.joins and birth.joins and birth.node not in living
        living = living - {death.node} | {birth.node}

    assert len(living) == nodes and len(changes) == 2 * int(1000.0 / every_seconds)


def test_a_pace_that_is_none_is_refused() -> None:
    """It would never end."""
    with pytest.raises(ValueError, match=r"every 0\.0 s"):
        churn(4, 0.0)


@pytest.mark.parametrize("agentic", [False, True], ids=["single", "agentic"])
def test_a_simulated_cell_whose_nodes_die_each_minute_takes_its_steps_and_loses_no_token(agentic: bool) -> None:
    """Generations move, and more tokens are fed again than where nobody dies."""
    cell = Cell("base", "multiplexed", nodes=4, agentic=agentic, steps=5, groups_per_node=1, episode_scale=1, buckets=32)
    _, calm = played("auto", cell, 1)
    _, churned = played("auto", cell, 1, churn_seconds=60.0)

    assert churned.steps == 5 and churned.lost_or_repeated == 0
    assert churned.moved > calm.moved and churned.reprefilled > calm.reprefilled
