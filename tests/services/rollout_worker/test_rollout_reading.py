"""A worker reads versions under a lease, and says which one it could not have."""

from __future__ import annotations

import threading

import pytest

from seamlessflow.contracts import Role, WeightsReading
from seamlessflow.weights import MANIFEST, weights_path
from seamlessflow.weights.manifest import DELTA_FILE
from seamlessflow.weights.reader_leases import read_readings
from seamlessflow_rollout_worker.weights import store_reader as first_weights_module
from seamlessflow_rollout_worker.weights import update_deadlines
from seamlessflow_rollout_worker.weights.local_versions import LocalVersions
from tests.services.rollout_worker.rollout_world import NODE, RUN, World


async def reads_of(world: World) -> tuple[WeightsReading, ...]:
    return (await read_readings(world.bus, RUN)).reads


async def missed_of(world: World) -> tuple[WeightsReading, ...]:
    return (await read_readings(world.bus, RUN)).missed


async def test_a_version_is_leased_while_it_is_fetched(world: World, monkeypatch: pytest.MonkeyPatch):
    """However long that takes; and let go of before it is loaded."""
    worker = await world.ready()
    may_go_on, fetch = threading.Event(), LocalVersions.fetch

    def slow(versions: LocalVersions, head):  # type: ignore[no-untyped-def]
        assert may_go_on.wait(10)
        return fetch(versions, head)

    monkeypatch.setattr(LocalVersions, "fetch", slow)
    await world.until(lambda: worker.service._tenure and worker.service._tenure._follower)
    monkeypatch.setattr(worker.service._tenure._follower, "_deadlines", update_deadlines.DEADLINE_SECONDS)
    await world.publish_weights(1)
    await world.until(lambda: reads_of(world))
    reads = await reads_of(world)
    may_go_on.set()
    await world.until(lambda: worker.engine.weights_version == 1)

    assert [(each.weights_version, each.path, each.reader) for each in reads] == [(1, weights_path(RUN, 1), f"i-{NODE}")]
    assert await reads_of(world) == ()


async def test_a_worker_says_what_it_could_not_have_until_it_has_it(world: World, monkeypatch: pytest.MonkeyPatch):
    """So the trainer publishes in full; the worker goes on with the next version that it can have."""
    worker = await world.ready()
    await world.publish_delta(1, before=0, head=False)
    world.store.write(f"{weights_path(RUN, 1)}/{DELTA_FILE}", b"damaged")
    await world.move_head(1)
    await world.until(lambda: missed_of(world))
    missed = await missed_of(world)
    assert [(each.weights_version, each.reader) for each in missed] == [(1, f"i-{NODE}")]
    assert "digest" in missed[0].missed

    await world.publish_weights(2)
    await world.until(lambda: worker.engine.weights_version == 2)

    async def is_forgotten() -> bool:
        return not await missed_of(world)

    await world.until(is_forgotten)


async def test_a_newcomer_on_an_older_version_says_that_it_lacks_the_newest(world: World):
    """It samples with what it has meanwhile; and takes its word back when it follows."""
    await world.open_run()
    await world.publish_model()
    await world.publish_weights(0)
    await world.publish_weights(1)
    world.store.write(f"{weights_path(RUN, 1)}/{MANIFEST}", b"damaged")
    worker = world.worker()
    await world.lease()
    await world.until(lambda: worker.engine.weights_version == 0)

    await world.until(lambda: missed_of(world))
    missed = await missed_of(world)
    assert missed[0].weights_version == 1
    await world.publish_weights(2)

    async def is_forgotten() -> bool:
        return not await missed_of(world)

    await world.until(is_forgotten)


async def test_a_newcomer_that_can_have_nothing_says_so(world: World, monkeypatch: pytest.MonkeyPatch):
    """The trainer publishes the first version again: the run would never begin else."""
    monkeypatch.setattr(first_weights_module, "POLL_SECONDS", 0.01)
    await world.open_run()
    await world.publish_model()
    await world.publish_weights(0)
    world.store.write(f"{weights_path(RUN, 0)}/model.safetensors", b"damaged")
    worker = world.worker()
    await world.lease(Role.ROLLOUT)
    await world.until(lambda: missed_of(world))

    await world.publish_weights(1)
    await world.until(lambda: worker.engine.weights_version == 1)
