"""Shards that are given and taken while others are served, and a manager that is not sure that its shards are still its own."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

import pytest

from seamlessflow.contracts import GenerationRequested
from seamlessflow.contracts.streams import run_consumers
from seamlessflow_trajectory_manager import run as membership
from seamlessflow_trajectory_manager.trajectory.manager import Manager
from tests.domain.trajectory_builders import EPISODE, RUN, user
from tests.services.trajectory_manager.trajectory_world import Running, World


@pytest.fixture
async def folded(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Shards that were read from the journal, in order; the run has two."""
    shards: list[str] = []
    fold = membership.fold_shard

    async def noted(bus, journal, run, shard, manager):
        shards.append(shard)
        return await fold(bus, journal, run, shard, manager)

    monkeypatch.setattr(membership, "fold_shard", noted)
    known = {"shard-0", "env-env", "gen-rollout-0", "scheduler", "trainer"}
    for consumer in run_consumers(RUN, envs=["env"], shards=2, tags=["rollout"], buckets=1):
        if consumer.name not in known:
            await world.bus.ensure_consumer(consumer)
    return shards


async def obeys(world: World, running: Running, *shards: str) -> None:
    """Write a lease and wait until the manager obeys it."""
    await world.lease(shards=shards)
    async with asyncio.timeout(8):
        while running.service._context.presence.status.epoch != world._epoch:
            await asyncio.sleep(0.005)


async def is_not_judged(world: World, call: str) -> bool:
    await asyncio.sleep(0.2)
    return await world.find(GenerationRequested, generation=call) is None


async def test_a_shard_that_is_given_or_taken_does_not_touch_the_others(world: World, folded: list[str]):
    """Only what is new is read; only what is gone is left; what comes back is read again."""
    running = await world.start_manager()
    first = await world.turn([user("q")], "seven")
    await obeys(world, running, "0", "1")
    history = [user("q"), first.message, user("r")]
    second = await world.turn(history, "eight")
    assert folded == ["0", "1"]

    await obeys(world, running, "1")
    asked = await world.ask([*history, second.message, user("s")])
    assert await is_not_judged(world, asked.call)
    world.script.append("nine")
    await obeys(world, running, "0", "1")
    request = await world.found(GenerationRequested, generation=asked.call)
    assert request.parent == second.call and (await world.answer(asked.call)).message["content"] == "nine"
    assert folded == ["0", "1", "0"]


async def test_the_trees_of_a_shard_that_is_left_go_with_it(world: World, monkeypatch: pytest.MonkeyPatch):
    """Also what has been there for so long that the collector does not look at it any more."""
    managers: list[Manager] = []
    fold = membership.fold_shard

    async def noted(bus, journal, run, shard, manager):
        managers.append(manager)
        return await fold(bus, journal, run, shard, manager)

    monkeypatch.setattr(membership, "fold_shard", noted)
    running = await world.start_manager()
    try:
        await world.turn([user("q")], "seven")
        await world.queue_is_empty()
        episode = managers[0].episode(EPISODE)
        assert episode is not None and gc.get_freeze_count() > 0
        tree = weakref.ref(episode.tree)
        del episode
        await obeys(world, running)
        assert managers[0].episode(EPISODE) is None and tree() is None
    finally:
        gc.unfreeze()


async def test_a_manager_that_missed_a_lease_reads_everything_again(world: World, folded: list[str]):
    """Between two leases that it saw, its shards may have been another's, which acknowledged what it never saw."""
    running = await world.start_manager()
    await world.turn([user("q")], "seven")
    world._epoch += 1
    await obeys(world, running, "0")
    await world.turn([user("r")], "eight")
    assert folded == ["0", "0"]


async def test_a_manager_judges_nothing_while_its_presence_has_a_gap(world: World):
    """Its shards may be another's. Once its presence is renewed and its lease read again, it goes on where it was."""
    running = await world.start_manager()
    first = await world.turn([user("q")], "seven")
    presence = running.service._context.presence
    presence._renewed_at = time.monotonic() - 10
    asked = await world.ask([user("q"), first.message, user("r")])
    assert await is_not_judged(world, asked.call)
    world.script.append("eight")
    presence._renewed_at = presence._unbroken_since = time.monotonic()
    assert (await world.answer(asked.call)).message["content"] == "eight"


async def test_a_manager_with_a_gap_lets_go_of_a_shard_all_the_same(world: World):
    """What it was delivered goes back to the queue, for whoever has the shard now."""
    running = await world.start_manager()
    await world.turn([user("q")], "seven")
    running.service._context.presence._renewed_at = time.monotonic() - 10
    asked = await world.ask([user("r")])
    assert await is_not_judged(world, asked.call)
    await obeys(world, running)
    running.service._context.presence._renewed_at = time.monotonic()
    world.script.append("eight")
    await obeys(world, running, "0")
    assert (await world.answer(asked.call)).message["content"] == "eight"
