"""Episodes that keep their weights version, at the workers: versions per token, holders that come and go, what is let go."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest

from seamlessflow.contracts import GenerationClaimed, Role, SegmentSampled, WeightsLoaded, claim_of
from seamlessflow.errors import SeamlessFlowError, Unavailable
from seamlessflow.runtime import event_handlers as runtime_inbox
from seamlessflow_rollout_worker.engines.base import EngineError
from seamlessflow_rollout_worker.engines.two_version_engine import TwoVersions
from seamlessflow_rollout_worker.generations import delivery_handler as sampling_module
from seamlessflow_rollout_worker.weights import pinned_versions
from seamlessflow_rollout_worker.weights import updater as weights_module
from seamlessflow_rollout_worker.weights.local_versions import LocalVersions
from tests.services.rollout_worker.kept_world import KeptWorld, tokens_under


@pytest.fixture
async def world(tmp_path, monkeypatch):
    """A world without a run yet; polls are quick."""
    monkeypatch.setattr(runtime_inbox, "PROGRESS_SECONDS", 0.05)
    monkeypatch.setattr(weights_module, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(pinned_versions, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(sampling_module, "LATER_SECONDS", 0.05)
    made = KeptWorld(tmp_path)
    yield made
    for worker in made.workers:
        if not worker.task.done():
            worker.context.stopping.set()
            with suppress(EngineError, SeamlessFlowError):
                await worker.task


async def claimers(world: KeptWorld, generation: str) -> list[str]:
    claims = [claim_of(event) for event in await world.said(GenerationClaimed | SegmentSampled)]
    return [claim.worker for claim in claims if claim is not None and claim.generation == generation]


async def test_an_episode_keeps_its_version_while_others_move_on(world: KeptWorld):
    """Three updates during one generation: every token is the version's, and the very one it would have been without them."""
    (worker,) = await world.start()
    await world.tell(keeps=0)
    await world.keep("c1", 0, max_tokens=200)
    await world.until_tokens(5)
    for version in (1, 2, 3):
        await world.update(version, worker)
        await world.keep(f"new{version}", version, max_tokens=3, episode="t-1-0")
        await world.until_ended(version)
    await world.until_ended(4)

    assert await world.versions_of("c1") == [0] * 200
    assert await world.tokens("c1") == await tokens_under(0, 200)
    assert [set(await world.versions_of(f"new{version}")) for version in (1, 2, 3)] == [{1}, {2}, {3}]
    await world.until_acked()


async def test_a_later_turn_is_sampled_under_the_version_of_the_first(world: KeptWorld):
    """Its tokens are those of a run whose weights never changed."""
    (worker,) = await world.start()
    await world.keep("c1", 0, max_tokens=6)
    await world.until_ended()
    await world.update(1, worker)
    await world.keep("c2", 0, max_tokens=6, parent="c1", parent_tokens=9, prompt=(4, 5))
    await world.until_ended(2)
    first = await tokens_under(0, 6)

    assert await world.tokens("c2") == await tokens_under(0, 6, (1, 2, 3, *first, 4, 5))


async def test_new_weights_pause_nobody(world: KeptWorld):
    """They are loaded into the engine that nobody keeps; which versions it has is said at once."""
    (worker,) = await world.start()
    await world.update(1, worker)
    loaded = [each for each in await world.said(WeightsLoaded) if each.weights_version == 1]

    assert [each.pause_seconds for each in loaded] == [0.0]
    assert worker.versions == (0, 1) and worker.context.presence.status.run == "r1"
    await world.update(2, worker)
    assert worker.versions == (1, 2)


async def test_what_loses_its_version_here_goes_on_where_it_is_kept(world: KeptWorld):
    """Behind the last token, under its own version, without waiting for the scheduler."""
    one, other = await world.start("n1", "n2")
    await world.update(1, one, other)
    await world.tell("n2", keeps=0)
    await world.keep("c1", 0, max_tokens=250)
    await world.keep("c2", 0, max_tokens=250, episode="t-1-0")
    await world.until_tokens(5, "c1")
    await world.until_tokens(5, "c2")
    await world.update(2, one, other)
    await world.until_ended(2, seconds=20)

    assert (one.versions, other.versions) == ((1, 2), (0, 2))
    for generation in ("c1", "c2"):
        assert await world.versions_of(generation) == [0] * 250
        assert await world.tokens(generation) == await tokens_under(0, 250)
        assert (await claimers(world, generation))[-1] == "i-n2"
    await world.until_acked()


async def test_generations_of_a_version_that_is_elsewhere_are_not_even_asked_for(world: KeptWorld):
    """They wait in the queue for its holder, and cost nobody anything."""
    one, other = await world.start("n1", "n2")
    await world.update(1, one, other)
    await world.tell("n2", keeps=0)
    await world.update(2, one, other)
    await other.kill()
    await world.keep("c1", 0)
    await world.keep("c2", 2, episode="t-1-0")
    await world.until_ended()

    assert await claimers(world, "c1") == [] and await world.num_queued() == 1
    assert one.service._tenure.num_taken.total() == 1


async def test_a_holder_that_is_killed_is_replaced_by_one_that_fetches_its_version(world: KeptWorld):
    """The scheduler tells another to keep it; what was sampled is continued, under the same version."""
    one, other = await world.start("n1", "n2")
    await world.update(1, one, other)
    await world.tell("n2", keeps=0)
    await world.update(2, one, other)
    await world.keep("c1", 0, max_tokens=300)
    await world.until_tokens(5)
    await other.kill()
    await world.tell("n1", keeps=0)
    await world.until_has(one, 0, 2)
    await world.until_ended(seconds=30)

    assert await world.versions_of("c1") == [0] * 300
    assert await world.tokens("c1") == await tokens_under(0, 300)
    assert await claimers(world, "c1") == ["i-n2", "i-n1"]


async def test_a_version_that_is_let_go_leaves_its_episodes_to_the_newest(world: KeptWorld, caplog):
    """Said and counted; each token carries the version that it was drawn from."""
    (worker,) = await world.start()
    await world.keep("c1", 0, max_tokens=300)
    await world.until_tokens(5)
    await world.update(1, worker)
    await world.update(2, worker)  # nobody was told to keep version 0
    num_kept = len(await world.tokens("c1"))
    await world.tell(let_go=(0,))
    await world.until_ended(seconds=20)
    versions = await world.versions_of("c1")

    assert 5 <= versions.count(0) < 300 and set(versions[versions.count(0) :]) == {2}
    assert num_kept <= versions.count(0)
    assert worker.context.presence.status.versions == (1, 2)


async def test_a_version_that_is_to_be_kept_and_is_gone_from_the_store_is_as_if_let_go(world: KeptWorld):
    """Nobody else would pull its generations: they are told to wait for this worker."""
    await world.open_kept(0, 1, 5)
    worker = world.kept_worker()
    await world.tell(keeps=3)
    await world.keep("c3", 3, max_tokens=4)
    await world.until_ended(seconds=10)

    assert set(await world.versions_of("c3")) == {5}
    assert worker.versions == (5,)


async def test_a_store_that_is_away_for_a_moment_costs_no_episode_its_version(world: KeptWorld, monkeypatch):
    """What is to be kept is tried again, each time later; its generations wait meanwhile."""
    fetch, failures = LocalVersions.fetch, [Unavailable("the store is away"), Unavailable("the store is away")]

    def flaky(self, head):
        if head.weights_version == 0 and failures:
            raise failures.pop()
        return fetch(self, head)

    monkeypatch.setattr(LocalVersions, "fetch", flaky)
    await world.open_kept(0, 1, 2)
    worker = world.kept_worker()
    await world.tell(keeps=0)
    await world.keep("c1", 0, max_tokens=20)
    await world.until_ended(seconds=10)

    assert failures == [] and worker.versions == (0, 2)
    assert await world.tokens("c1") == await tokens_under(0, 20)


async def test_a_device_is_lent_at_once_while_a_version_that_is_to_be_kept_is_read(world: KeptWorld, monkeypatch):
    """However long reading takes; it is fetched again, and loaded, once the device is back."""
    await world.open_kept(0, 1, 2)
    worker = world.kept_worker()
    await world.tell()
    await world.until_has(worker, 2)
    stage, free, begun = TwoVersions.stage_weights, asyncio.Event(), asyncio.Event()

    async def slowly(self, file, **how):
        begun.set()
        await free.wait()
        await stage(self, file, **how)

    monkeypatch.setattr(TwoVersions, "stage_weights", slowly)
    await world.tell(keeps=0)
    await begun.wait()
    await world.lease(Role.TRAIN)
    await world.until(lambda: worker.context.presence.status.state == "frozen")
    free.set()
    await asyncio.sleep(0.05)
    assert worker.versions == (2,), "nothing is loaded on a device that is somebody else's"
    await world.tell(keeps=0)
    await world.until_has(worker, 0, 2)


async def test_a_device_that_is_back_does_not_wait_for_an_older_version_that_is_fetched(world: KeptWorld, monkeypatch):
    """It samples under what it has, which may be the newest; nobody knows how long the store takes."""
    fetch, free, begun = LocalVersions.fetch, threading.Event(), threading.Event()

    def slowly(self, head):
        if head.weights_version == 0:
            begun.set()
            free.wait(20)
        return fetch(self, head)

    monkeypatch.setattr(LocalVersions, "fetch", slowly)
    await world.open_kept(0, 1, 2)
    worker = world.kept_worker()
    await world.tell(keeps=0)
    await world.until(begun.is_set)
    await world.lease(Role.TRAIN)
    await world.until(lambda: worker.context.presence.status.state == "frozen")
    await world.tell(keeps=0)
    try:
        await world.until(lambda: worker.context.presence.status.state == "sampling")
        assert worker.versions == (2,)
    finally:
        free.set()


async def test_a_version_of_another_slot_mate_is_handed_back(world: KeptWorld):
    """Versions 1 and 5 share a slot: what asks for the one is not sampled under the other."""
    await world.open_kept(1)
    one = world.kept_worker("n1")
    await world.tell("n1")
    await world.until_has(one, 1)
    await world.keep("c5", 5, max_tokens=3)
    await world.keep("c1", 1, max_tokens=3, episode="t-1-0")
    await world.until_ended()
    assert await world.versions_of("c5") == []
    await world.publish_version(5)
    await world.until_ended(2)

    assert set(await world.versions_of("c5")) == {5}


async def test_a_device_that_was_lent_goes_on_with_what_it_froze_under_the_version_that_was_kept(world: KeptWorld):
    """New weights came meanwhile: they are loaded beside it."""
    (worker,) = await world.start()
    await world.keep("c1", 0, max_tokens=200)
    await world.until_tokens(5)
    await world.lease(Role.TRAIN)
    await world.until(lambda: worker.context.presence.status.state == "frozen")
    await world.publish_version(1)
    await world.tell()
    await world.until_ended(seconds=10)

    assert await world.versions_of("c1") == [0] * 200
    assert worker.versions == (0, 1)


async def test_one_engine_that_hangs_is_noticed_while_the_other_samples_on(world: KeptWorld, monkeypatch):
    """Its generations would wait for it as long as there are others: the process ends, and somebody goes on with them."""
    monkeypatch.setattr("seamlessflow_rollout_worker.worker_monitor.OBSERVE_SECONDS", 0.02)
    (worker,) = await world.start()
    worker.service._settings.stall_seconds = 0.4
    await world.keep("c1", 0, max_tokens=500)
    await world.until_tokens(5)
    await world.update(1, worker)
    await world.keep("new", 1, max_tokens=900, episode="t-1-0")
    await world.until_tokens(5, "new")
    assert not worker.task.done()
    old = worker.service._tenure.engine._engines[0]
    old._awake.clear()  # as a thread that is stuck

    with pytest.raises(EngineError, match="sampled nothing"):
        await asyncio.wait_for(worker.task, 10)


async def test_a_worker_that_leaves_the_run_has_no_version_of_it(world: KeptWorld):
    """And says so."""
    (worker,) = await world.start()
    await world.lease(Role.IDLE, run=None)
    await world.until(lambda: worker.versions == ())

    assert worker.context.presence.status.run is None
