"""Trainers that sleep in the middle of any call and wake late: whatever the order of calls, one chain of weights survives.

pytest tests/services/trainer/test_late_trainers.py --order 4711     one order, with all of its calls where it goes wrong
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.trainer.sleeping_lives import Fault
from tests.services.trainer.sleeping_plans import Plan, plan_of
from tests.services.trainer.sleeping_world import Outcome, play, stage
from tests.services.trainer.surviving_chain import violations

ORDERS, MANY_ORDERS = 2_000, 20_000
UNFENCED_ORDERS = 1_000
"""Without a comparison of sequences a fault is found within so many."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with stage() as folder:
        yield folder


def check(outcome: Outcome) -> None:
    if wrong := violations(outcome):
        pytest.fail("\n".join([*wrong, outcome.story()]), pytrace=False)


def check_orders(folder: Path, num_orders: int, first_seed: int) -> None:
    """Play orders until so many different ones were played."""
    seen: set[bytes] = set()
    for seed in itertools.count(first_seed):
        outcome = play(plan_of(seed), folder)
        check(outcome)
        seen.add(outcome.order)
        if len(seen) == num_orders:
            return


def test_a_life_alone_trains_and_closes_every_group(folder: Path) -> None:
    """The checks hold for a run in which nothing happens."""
    plan = Plan(
        0,
        1,
        ((),),
        is_one_node=False,
        first_is_last=False,
        is_stopped=False,
        scheduler=(),
        longest_delays=(0.0,),
        lease_moves_after=0.0,
    )

    outcome = play(plan, folder)

    check(outcome)
    assert {who for who, _ in outcome.calls} == {"a", "scheduler-0"}


def test_a_seed_is_one_order(folder: Path) -> None:
    """An order that went wrong can be played again."""
    for seed in range(20):
        first, second = play(plan_of(seed), folder), play(plan_of(seed), folder)

        assert first.calls == second.calls
        assert first.said == second.said


def test_every_fault_occurs_at_every_part_of_a_life(folder: Path) -> None:
    """Seeds do not leave out a kind of misfortune, nor the beginning or the end of a life."""
    plans = [plan_of(seed) for seed in range(ORDERS)]
    places = {(each.fault, each.at_point // 40) for plan in plans for life in plan.lives for each in life}

    assert places >= set(itertools.product(Fault, range(5)))


def test_an_order_of_the_command_line(folder: Path, request: pytest.FixtureRequest) -> None:
    """One order, where it is asked for."""
    seed = request.config.getoption("--order", default=None)
    if seed is None:
        pytest.skip("no --order was given")
    check(play(plan_of(seed), folder))


@pytest.mark.parametrize("part", range(4))
def test_no_order_leaves_two_chains(folder: Path, part: int) -> None:
    """Two or three lives, of which one sleeps, hangs, is cut off or dies at any point: every promise is kept in the end."""
    check_orders(folder, ORDERS // 4, first_seed=part * ORDERS)


@pytest.mark.slow
def test_no_order_of_many_leaves_two_chains(folder: Path) -> None:
    """The same with other orders, and ten times as many."""
    check_orders(folder, MANY_ORDERS, first_seed=1_000_000)


def test_without_a_fence_a_fault_is_found_soon(folder: Path) -> None:
    """On a bus that compares no sequences weights lose what was committed: a fence that does not hold would be noticed."""

    def loses_groups(seed: int) -> bool:
        return any("was trained on" in each for each in violations(play(plan_of(seed), folder, is_fenced=False)))

    assert any(loses_groups(seed) for seed in range(UNFENCED_ORDERS))
