"""Waits in a timed run: what policies compare is modelled seconds, and every constant that is listed is what services use."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.fleet.constants import AGENTS_PER_NODE, WAITS, Wait
from loadtest.fleet.timed_cell import Cell
from loadtest.fleet.timed_policies import in_modelled_seconds, scaled, timed_policy
from seamlessflow.contracts import Lease, Role, Service
from seamlessflow.errors import ConfigError
from seamlessflow_scheduler.policy import policy_of
from seamlessflow_scheduler.policy.base import Assignment, Demand, Node, Process, Rates

WORKER, TRAINER = Service.ROLLOUT_WORKER.value, Service.TRAINER.value
NOW = 1.7e9


def fleet(*, lent: bool) -> list[Node]:
    """Four nodes that can do both; the first leads a gang of two, which trains or is lent."""
    processes = {WORKER: Process(frozenset({"rollout"})), TRAINER: Process(frozenset({"train"}))}
    names = ["a", "b", "c", "d"]

    def lease(name: str) -> Lease:
        trains = name in ("a", "b") and not lent
        gang = {"a": ("a", "b"), "b": ("a", "b")}.get(name, ()) if trains else ()
        role = Role.TRAIN if trains else Role.ROLLOUT
        return Lease(run="r", role=role, tags=("rollout",), epoch=1, trainer=name == "a", gang=gang)

    return [
        Node(name, processes, lease(name), NOW - 1000, frozenset({TRAINER if lease(name).role is Role.TRAIN else WORKER}))
        for name in names
    ]


def demand(**rates: float) -> Demand:
    """Half a batch is missing, and a step costs a hundred real seconds of rollout."""
    measured = Rates(rollout_seconds=100.0, train_seconds=40.0, reclaim_seconds=0.2, lend_seconds=0.2)
    return Demand("r", "multiplexed", train_nodes=2, groups_per_step=8, groups_ready=4, max_staleness=8,
                  rates=replace(measured, **cast(Any, rates)))  # fmt: skip


def roles(assignments: list[Assignment]) -> dict[str, Role]:
    return {each.node: each.role for each in assignments}


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.where)
def test_every_wait_that_is_listed_is_what_the_services_use(wait: Wait) -> None:
    """So the list cannot fall behind."""
    module, _, name = wait.where.partition(":")
    owner, _, field = name.partition(".")
    found = getattr(import_module(module), owner)
    assert (found.model_fields[field].default if field else found) == wait.seconds
    assert wait.effect


@given(st.floats(1.0, 60.0), st.floats(0.0, 100.0), st.booleans())
def test_a_scaled_run_decides_as_an_unscaled_one_does(time_scale: float, drought: float, lent: bool) -> None:
    """The same fleet, measured in real seconds that stand for several: the decision is that of modelled seconds."""
    policy = policy_of("multiplexed")
    real = demand(group_finished_at=NOW - drought / time_scale, rollout_seconds=100.0 / time_scale,
                  train_seconds=40.0 / time_scale, reclaim_seconds=3.0 / time_scale, lend_seconds=3.0 / time_scale)  # fmt: skip
    modelled = demand(group_finished_at=NOW - drought, reclaim_seconds=3.0, lend_seconds=3.0)

    said = in_modelled_seconds(policy, time_scale)(fleet(lent=lent), real, NOW)
    assert roles(said) == roles(policy(fleet(lent=lent), modelled, NOW))


def test_a_hand_over_that_was_not_measured_is_two_modelled_seconds() -> None:
    """Each way: a batch due in ten modelled seconds is not waited for; without scaling it would be, at thirty to one."""
    unmeasured = replace(demand(group_finished_at=NOW), groups_ready=7)
    unmeasured = replace(
        unmeasured, rates=replace(unmeasured.rates, rollout_seconds=8.0, reclaim_seconds=None, lend_seconds=None)
    )
    policy, nodes = policy_of("multiplexed"), fleet(lent=False)

    assert roles(policy(nodes, unmeasured, NOW))["a"] is Role.TRAIN
    assert roles(in_modelled_seconds(policy, 30.0)(nodes, unmeasured, NOW))["a"] is Role.ROLLOUT


def test_a_service_that_does_not_answer_is_waited_for_in_real_seconds() -> None:
    """A trainer whose batch has its groups is held for five of them, which at thirty to one are two and a half minutes."""
    waiting = replace(demand(step_taken_at=NOW - 2.0, group_finished_at=NOW - 2.0), groups_ready=8)
    nodes = fleet(lent=False)

    assert roles(in_modelled_seconds(policy_of("multiplexed"), 30.0)(nodes, waiting, NOW))["a"] is Role.TRAIN
    late = replace(waiting, rates=replace(waiting.rates, step_taken_at=NOW - 6.0, group_finished_at=NOW - 6.0))
    assert roles(in_modelled_seconds(policy_of("multiplexed"), 30.0)(nodes, late, NOW))["a"] is Role.ROLLOUT


def test_all_times_that_were_measured_are_scaled_and_nothing_else() -> None:
    """Sizes and counts stay."""
    rates = scaled(Rates(rollout_seconds=2.0, step_nodes=3, step_began_at=5.0, waited=(1.0, 2.0)), 10.0)
    assert rates == Rates(rollout_seconds=20.0, step_nodes=3, step_began_at=50.0, waited=(1.0, 2.0))


def test_a_run_document_names_the_policy_with_its_scale() -> None:
    """Which the scheduler can import; what compares with no constant keeps its name."""
    cell = Cell("auto", "auto", time_scale=30.0)
    name = cell.document("model")["fleet"]["policy"]

    assert callable(policy_of(name)) and name.endswith(":auto_30")
    assert timed_policy("disaggregated", 30.0) == "disaggregated"
    assert timed_policy("auto", 1.0) == "auto"
    with pytest.raises(ConfigError, match="has no auto_fast"):
        policy_of(name.replace("_30", "_fast"))


def test_the_scheduler_looks_as_often_as_a_simulated_one() -> None:
    """In modelled seconds, and never so often that it does nothing else."""
    assert Cell("auto", "auto", time_scale=10.0).tick_seconds == pytest.approx(0.5)
    assert Cell("auto", "auto", time_scale=400.0).tick_seconds == pytest.approx(0.1)


@pytest.mark.parametrize("episode_scale", [1, 4, 8])
@pytest.mark.parametrize("policy", ["auto", "disaggregated", "colocated"])
def test_as_many_agents_play_as_in_the_simulator(policy: str, episode_scale: int) -> None:
    """Whatever a timed episode stands for; of single turns only slots are a limit."""
    one = Cell("a", policy, agentic=True, train_nodes=3, episode_scale=1)
    cell = replace(one, episode_scale=episode_scale)

    assert cell.agents * episode_scale == pytest.approx(one.agents, rel=0.05)
    assert one.agents <= one.nodes * AGENTS_PER_NODE
    single = replace(cell, agentic=False)
    assert single.agents == 2 * single.nodes * single.cost.slots
