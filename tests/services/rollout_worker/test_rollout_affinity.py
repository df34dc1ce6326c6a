"""What a worker tells of itself and takes: its engine, how often its cache was hit, and no more than its slots."""

from __future__ import annotations

import asyncio

import pytest

from seamlessflow_rollout_worker.engines.base import PrefixUse
from tests.services.rollout_worker.rollout_world import Worker, World


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr("seamlessflow_rollout_worker.worker_monitor.OBSERVE_SECONDS", 0.02)


def rate(worker: Worker) -> object:
    return worker.context.presence.status.facts.get("affinity_hit_rate")


async def start(world: World, **lease: object) -> Worker:
    await world.open_run(fleet={"slots": 4, "buckets": 2})
    await world.publish_model()
    await world.publish_weights(0)
    worker = world.worker(by_itself=True)
    await world.lease(**lease)
    return worker


async def test_the_hit_rate_is_the_share_of_prompt_tokens_that_the_engines_cache_held(world: World):
    """Where the engine counts them; it is there for people and policies."""
    worker = await start(world, buckets=(0, 1))
    worker.engine.prefix_use = PrefixUse(prompt_tokens=1000, cached_tokens=820)

    await world.until(lambda: rate(worker) == 0.82)
    assert worker.context.presence.status.engine == "scripted"


async def test_of_an_engine_that_does_not_count_it_is_the_share_that_came_to_its_owner(world: World):
    """Buckets are counted over the tags of the run in alphabetical order: prefill+rollout has 0 and 1, rollout 2 and 3."""
    worker = await start(world, buckets=(3,), tags=("rollout",))
    await world.ask("c1", bucket=1)
    await world.ask("c2", bucket=0)
    await world.until_ended(2)

    await world.until(lambda: rate(worker) == 0.5)


async def test_an_engine_that_claims_more_slots_than_the_run_gives_takes_no_more_than_those(world: World):
    """What it held beyond them others would wait for; the rest stays in the queue and is not even delivered."""
    await world.open_run(fleet={"slots": 4})
    await world.publish_model()
    await world.publish_weights(0)
    liar = world.worker()
    liar.engine.num_slots = 100_000
    await world.lease()
    for number in range(12):
        await world.ask(f"c{number}")
    await world.until(lambda: len(liar.engine.requests) == 4)
    await asyncio.sleep(0.05)
    assert len(liar.engine.requests) == 4

    honest = world.worker("n2", by_itself=True)
    await world.lease(node="n2")
    await world.until_ended(8)
    assert len(liar.engine.requests) == 4 and honest.engine.requests == {}


async def test_an_engine_without_any_slot_takes_nothing(world: World):
    """And breaks nothing."""
    await world.open_run()
    await world.publish_model()
    await world.publish_weights(0)
    none = world.worker()
    none.engine.num_slots = -3
    await world.lease()
    await world.ask("c1")
    world.worker("n2", by_itself=True)
    await world.lease(node="n2")

    await world.until_ended()
    assert none.engine.requests == {}
