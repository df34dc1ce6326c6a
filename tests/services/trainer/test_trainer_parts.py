"""A step that begins before its batch is whole (algorithm.begin_share): the same step in the end, and it always ends.

what happens while it waits for groups      the step
the rest comes                              is that of the whole batch
nothing more will come (end of all tasks)   is taken on what is there
none comes for long, or the device is       is taken on what is there; what comes later is for the next one
wanted back
SIGTERM                                     is given up, its groups are handed back
the run is stopped                          is given up, its groups are dropped with the run
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import (
    BatchReady,
    GroupDropped,
    GroupTrained,
    Role,
    StepTaken,
    TrainerStarted,
    TrainingEnded,
    TrainingEndRequested,
)
from seamlessflow.errors import ConfigError
from seamlessflow.weights.staleness import VersionSteps
from seamlessflow_trainer.data.batch import TrainingBatch, joined_batch, make_batch
from seamlessflow_trainer.data.batch_feed import BatchFeed
from seamlessflow_trainer.data.groups import TrainingGroup
from seamlessflow_trainer.learner.base import Abandoned
from seamlessflow_trainer.steps import train_step
from tests.services.trainer.test_learner import a_learner, random_sample
from tests.services.trainer.trainer_accounts import until_all_is_acknowledged
from tests.services.trainer.trainer_world import RUN, VOCABULARY, World, by_index, run_document, samples_ready

MakeWorld = Callable[..., Awaitable[World]]
GROUPS = ("a", "b", "c", "d")


def cut_batch(seed: int, cuts: list[int]) -> tuple[TrainingBatch, list[TrainingBatch]]:
    """Four groups as one batch, and the same ones cut into parts."""
    rng = random.Random(seed)
    groups = []
    for name in GROUPS:
        prefix = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 6))]
        equal = rng.random() < 0.3  # members that teach nothing count as tokens all the same
        rewards = [0.5] * 3 if equal else [rng.random() for _ in range(3)]
        members = [samples_ready(name, i, [random_sample(rng, prefix)], reward) for i, reward in enumerate(rewards)]
        groups.append(TrainingGroup(name, tuple(members)))
    algorithm = parse_run_config(run_document(Path("x"))).algorithm
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(groups)}), len(groups)]

    def batch(some: list[TrainingGroup]) -> TrainingBatch:
        return make_batch(some, VersionSteps([(0, 0)]), 0, 0, algorithm)

    return batch(groups), [batch(groups[first:last]) for first, last in pairwise(edges)]


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**31), cuts=st.lists(st.integers(1, 3), max_size=3))
def test_parts_make_the_step_of_the_whole_batch(seed: int, cuts: list[int], tiny_llama: Path) -> None:
    """The same figures and, as the optimiser sees them, the same gradients up to rounding."""
    whole, parted = a_learner(tiny_llama), a_learner(tiny_llama)
    batch, parts = cut_batch(seed, cuts)
    figures, part_figures = whole.train(batch, learning_rate=1e-3), parted.train_parts(parts, learning_rate=1e-3)

    assert part_figures.num_computed == figures.num_computed
    for name in ("loss", "importance_ratio", "truncated_fraction", "gap_sum", "gap_tokens"):
        assert getattr(part_figures, name) == pytest.approx(getattr(figures, name), rel=1e-4, abs=1e-5)
    assert part_figures.grad_norm == pytest.approx(figures.grad_norm, rel=1e-3, abs=1e-5)
    states = whole.optimizer_state(), parted.optimizer_state()
    assert states[0].keys() == states[1].keys()
    for name in (name for name in states[0] if name.startswith("exp_avg.")):
        torch.testing.assert_close(states[1][name], states[0][name], rtol=1e-3, atol=1e-6)


@given(seed=st.integers(0, 2**31), cuts=st.lists(st.integers(1, 3), max_size=3))
def test_joined_parts_are_the_batch(seed: int, cuts: list[int]) -> None:
    """Every list of it, and the numbers by which paths find their tokens."""
    batch, parts = cut_batch(seed, cuts)
    again = joined_batch(parts)
    for each in fields(TrainingBatch):
        mine, other = getattr(again, each.name), getattr(batch, each.name)
        assert torch.equal(mine, other) if isinstance(other, torch.Tensor) else mine == other


def test_a_feed_waits_for_parts_and_for_its_end() -> None:
    """The learner's thread stands still meanwhile."""
    feed, seen = BatchFeed(), list[TrainingBatch]()
    _, parts = cut_batch(1, [1, 2])
    thread = threading.Thread(target=lambda: seen.extend(feed))
    thread.start()
    for part in parts:
        feed.put(part)
    thread.join(0.05)
    assert thread.is_alive()
    feed.end()
    thread.join(5)
    assert seen == parts


def test_a_feed_that_is_given_up_ends_the_step() -> None:
    """Whatever was put before."""
    feed = BatchFeed()
    feed.give_up()
    feed.give_up()
    with pytest.raises(Abandoned):
        list(feed)


def test_nobody_samples_during_a_colocated_step() -> None:
    """So the rest of a batch would never come: such a run is refused."""
    document = run_document(Path("x"), begin_share=0.5)
    assert parse_run_config(document).algorithm.begin_share == 0.5
    document["fleet"]["policy"] = "colocated"
    with pytest.raises(ConfigError, match="no node samples"):
        parse_run_config(document)


async def begun(make_world: MakeWorld, **algorithm: object) -> World:
    """A run of one step of four groups that begins with two."""
    world = await make_world(**{"steps": 1, "groups_per_step": 4, "begin_share": 0.5, "max_staleness": 9, **algorithm})
    await world.lease(Role.TRAIN, hand_back=True)
    return world


async def answered(world: World, *groups: str) -> None:
    policy = await world.policy()
    for group in groups:
        await world.answer(group, by_index(), policy=policy)


async def test_a_step_begins_with_its_share_and_takes_the_rest_as_it_comes(make_world: MakeWorld) -> None:
    """BatchReady tells what is known then; StepTaken names all groups, and its figures are of all."""
    world = await begun(make_world)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await answered(world, "a")
        await asyncio.sleep(0.1)
        assert await world.heard(BatchReady) == []
        await answered(world, "b")
        ready = await world.hears(BatchReady)
        await answered(world, "c")
        await asyncio.sleep(0.1)
        assert await world.heard(StepTaken) == []
        await answered(world, "d")
        step = await world.hears(StepTaken)
        await world.hears(TrainingEnded)
        await until_all_is_acknowledged(world)

    assert (ready.num_groups, ready.num_tokens) == (2, 16)
    assert sorted(step.groups) == list(GROUPS)
    assert (step.metrics["num_groups"], step.metrics["trained_tokens"]) == (4.0, 32.0)
    assert sorted(group.group for group in await world.heard(GroupTrained)) == list(GROUPS)


async def test_where_nothing_more_comes_the_step_is_taken_on_what_is_there(make_world: MakeWorld) -> None:
    """The end of all tasks, in the middle of a step."""
    world = await begun(make_world, steps=5)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await answered(world, "a", "b", "c")
        await world.hears(BatchReady)
        await world.journal.publish(TrainingEndRequested(run=RUN, reason="tasks_ended", train_rest=True))
        await world.hears(TrainingEnded)
        await until_all_is_acknowledged(world)

    (step,) = await world.heard(StepTaken)
    assert sorted(step.groups) == ["a", "b", "c"]


@pytest.mark.parametrize("why", ["nobody samples", "the device is wanted back"])
async def test_a_step_does_not_wait_for_ever(why: str, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken on what is there, the device is let go of, and what comes later is for the next step."""
    world = await begun(make_world, steps=2)
    if why == "nobody samples":
        monkeypatch.setattr(train_step, "REST_SECONDS", 0.3)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await answered(world, "a", "b")
        await world.hears(BatchReady)
        await asyncio.sleep(0.1)
        if why != "nobody samples":
            await world.lease(Role.ROLLOUT)
        first = await world.hears(StepTaken)
        await world.lease(Role.TRAIN, hand_back=True)
        await answered(world, *"cdef")
        second = await world.hears(StepTaken, count=2)

    assert (sorted(first.groups), sorted(second.groups)) == (["a", "b"], ["c", "d", "e", "f"])


async def test_sigterm_gives_a_waiting_step_up(make_world: MakeWorld) -> None:
    """Nothing was changed, nothing is committed, and every sample is there for the next line."""
    world = await begun(make_world)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await answered(world, "a", "b", "c")
        await world.hears(BatchReady)
        await asyncio.sleep(0.1)

    assert await world.heard(StepTaken) == []
    assert await world.queued() == 6
    await world.lease(Role.TRAIN, hand_back=True)
    async with world.trainer():
        await world.hears(TrainerStarted, count=2)
        await answered(world, "d")
        await world.hears(TrainingEnded)
    (step,) = await world.heard(StepTaken)
    assert (step.line, sorted(step.groups)) == (2, list(GROUPS))


async def test_a_run_that_is_stopped_gives_a_waiting_step_up(make_world: MakeWorld) -> None:
    """Its samples are acknowledged; its groups are the scheduler's to drop."""
    world = await begun(make_world)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await answered(world, "a", "b", "c")
        await world.hears(BatchReady)
        await world.journal.publish(TrainingEndRequested(run=RUN, reason="stopped", train_rest=False))
        await world.hears(TrainingEnded)
        await until_all_is_acknowledged(world)

    assert await world.heard(StepTaken) == []
    assert await world.heard(GroupDropped) == []
