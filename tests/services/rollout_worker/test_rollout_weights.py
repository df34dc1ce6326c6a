"""New weights in the middle of generations: exact versions, nothing lost, and a bad version stops nobody."""

import asyncio
import shutil
import time

import pytest
import torch
from safetensors.torch import save
from structlog.testing import capture_logs

from seamlessflow.contracts import Role, RoleReleased, RoleTaken, SegmentSampled, WeightsLoaded
from seamlessflow.errors import BadInput
from seamlessflow.weights import publish_folder, weights_path
from seamlessflow_rollout_worker import run as tenure_module
from seamlessflow_rollout_worker.weights import updater as weights_module
from seamlessflow_rollout_worker.weights.local_versions import LocalVersions
from seamlessflow_rollout_worker.weights.update_deadlines import Step
from tests.services.rollout_worker.rollout_world import NODE, RUN, World


async def test_each_segment_has_the_one_version_that_sampled_it(world: World):
    """A change in the middle of a generation gives exact runs of versions, however few tokens were unsaid."""
    worker = await world.ready()
    await world.ask(max_tokens=6)
    await world.until(lambda: worker.engine.requests)

    worker.engine.step(2)
    await world.publish_weights(1)
    await world.until(lambda: worker.engine.weights_version == 1 and not worker.engine.is_paused)
    worker.engine.step(1)
    await world.publish_weights(2)
    await world.until(lambda: worker.engine.weights_version == 2 and not worker.engine.is_paused)
    worker.engine.step(3)
    await world.until_acked()

    versions = [segment.weights_version for segment in await world.said(SegmentSampled) for _ in segment.token_ids]
    assert versions == [0, 0, 1, 2, 2, 2]
    assert await world.tokens() == [1003 + n for n in range(6)]


async def test_the_pause_covers_the_copy_alone_and_is_always_followed_by_resume(world: World):
    """Fetched, and read by the engine, before the pause; said with its times and the number of generations that were held."""
    worker = await world.ready()
    await world.ask()
    await world.until(lambda: worker.engine.requests)

    await world.publish_weights(1)
    await world.until_said(WeightsLoaded, 2)

    assert worker.engine.calls == ["start", "stage", "pause", "load 1", "resume"]
    loaded = (await world.said(WeightsLoaded))[-1]
    assert (loaded.weights_version, loaded.worker, loaded.num_frozen) == (1, f"i-{NODE}", 1)
    assert loaded.fetch_seconds > 0 and 0 <= loaded.pause_seconds < 1


async def test_the_newest_version_wins_and_old_ones_leave_the_disk(world: World):
    """Versions that were overtaken are never fetched; two stay."""
    worker = await world.ready()
    for version in (1, 2, 3):
        await world.publish_weights(version, head=False)
    await world.move_head(3)
    await world.until(lambda: worker.engine.weights_version == 3)
    await world.publish_weights(4)
    await world.until(lambda: worker.engine.weights_version == 4)

    assert [call for call in worker.engine.calls if call.startswith("load")] == ["load 3", "load 4"]
    folder = world.folder / "work" / "rollout-worker" / NODE / RUN
    assert sorted(each.name for each in folder.iterdir()) == ["00000003", "00000004"]


async def test_a_version_that_is_only_its_changes_is_loaded_whole(world: World):
    """Made of the one that is here, several steps at once where some were overtaken; engines see complete tensors."""
    worker = await world.ready()
    await world.publish_delta(1, before=0)
    await world.until(lambda: worker.engine.weights_version == 1)
    assert worker.engine.loaded == {"w": [1.0, 1.0]}

    await world.publish_delta(2, before=1, head=False)
    await world.publish_delta(3, before=2)
    await world.until(lambda: worker.engine.weights_version == 3)
    assert worker.engine.loaded == {"w": [3.0, 3.0]}


async def test_a_worker_that_comes_late_takes_a_full_version_and_the_changes_since(world: World):
    """It starts with the newest version, not with the full one."""
    await world.open_run()
    await world.publish_model()
    await world.publish_weights(1, head=False)
    await world.publish_delta(2, before=1, head=False)
    await world.publish_delta(3, before=2)
    worker = world.worker()
    await world.lease()
    await world.until_said(WeightsLoaded, 1)

    assert worker.engine.calls == ["start"] and worker.engine.weights_version == 3
    assert {loaded.weights_version for loaded in await world.said(WeightsLoaded)} == {3}


async def test_changes_that_are_damaged_stop_nobody(world: World):
    """They are never loaded, by nobody, nor what builds on them; the next full version heals it."""
    worker = await world.ready(by_itself=True)
    await world.publish_delta(1, before=0, head=False)
    path = f"{weights_path(RUN, 1)}/delta.safetensors"
    world.store.write(path, world.store.read(path)[:-1])
    with capture_logs() as logs:
        await world.move_head(1)
        await world.ask("c1")
        await world.until_acked()
        await world.publish_delta(2, before=1)
        await world.until(lambda: sum(line["event"] == "weights.skipped" for line in logs) >= 2)
    assert worker.engine.weights_version == 0 and len(await world.tokens("c1")) == 8
    assert any("do not have the manifest's digest" in line["reason"] for line in logs if line["event"] == "weights.skipped")

    await world.publish_weights(3)
    await world.until(lambda: worker.engine.weights_version == 3)


async def test_weights_that_are_no_numbers_never_reach_an_engine(world: World):
    """A policy that broke in training: sampling goes on with the last good one."""
    worker = await world.ready(by_itself=True)
    with capture_logs() as logs:
        content = save({"w": torch.tensor([1.0, float("nan")])})
        publish_folder(world.store, weights_path(RUN, 1), {"model.safetensors": content}, {})
        await world.move_head(1)
        await world.until(lambda: any(line["event"] == "weights.skipped" for line in logs))
    await world.ask("c1")
    await world.until_acked()

    assert worker.engine.weights_version == 0 and "load 1" not in worker.engine.calls
    (skipped, *_) = [line for line in logs if line["event"] == "weights.skipped"]
    assert "tensor w has values that are NaN;" in skipped["reason"]


async def test_a_truncated_version_is_skipped_and_sampling_goes_on(world: World):
    """It is reported and never loaded; the next good one is."""
    worker = await world.ready(by_itself=True)
    await world.publish_weights(1, head=False)
    world.store.write(f"{weights_path(RUN, 1)}/model.safetensors", b"half")
    await world.move_head(1)
    await world.ask("c1")
    await world.until_acked()

    assert worker.engine.weights_version == 0 and len(await world.tokens("c1")) == 8
    await world.publish_weights(2)
    await world.until(lambda: worker.engine.weights_version == 2)


async def test_a_version_that_does_not_fit_is_skipped_before_anything_is_paused(world: World):
    """The engine reads it while it samples on; what it refuses costs no pause. The next good one is loaded."""
    worker = await world.ready()
    worker.engine.refuses_stage = BadInput("w: expected shape (3,), got (2,)")
    with capture_logs() as logs:
        await world.publish_weights(1)
        await world.until(lambda: any(line["event"] == "weights.skipped" for line in logs))
    assert worker.engine.calls == ["start"] and worker.engine.weights_version == 0

    worker.engine.refuses_stage = None
    await world.publish_weights(2)
    await world.until(lambda: worker.engine.weights_version == 2)


async def test_a_version_that_is_refused_while_paused_is_skipped(world: World):
    """Whatever is wrong with it, the engine is resumed and samples with what it has."""
    worker = await world.ready()
    worker.engine.refuses_load = BadInput("w: expected shape (3,), got (2,)")
    await world.publish_weights(1)
    await world.until(lambda: "pause" in worker.engine.calls and worker.engine.calls[-1] == "resume")

    worker.engine.refuses_load = None
    await world.ask(max_tokens=2)
    await world.until(lambda: worker.engine.requests)
    await world.publish_weights(2)
    await world.until(lambda: worker.engine.weights_version == 2 and not worker.engine.is_paused)
    worker.engine.step(2)
    await world.until_ended()

    assert [segment.weights_version for segment in await world.said(SegmentSampled)] == [2]


async def test_a_store_that_is_away_for_a_while_costs_only_time(world: World):
    """The version is fetched when the store is back, without a new announcement."""
    worker = await world.ready()
    await world.publish_weights(1, head=False)
    there, away = world.folder / "store", world.folder / "store-away"
    shutil.move(there, away)
    await world.move_head(1)
    await world.ask(max_tokens=2)
    await world.until(lambda: worker.engine.requests)
    worker.engine.step(2)
    await world.until_acked()
    assert worker.engine.weights_version == 0

    shutil.move(away, there)
    await world.until(lambda: worker.engine.weights_version == 1)


async def test_a_generation_waits_for_the_version_it_asks_for(world: World):
    """It is handed back until the engine has those weights, and then sampled with them."""
    worker = await world.ready(by_itself=True)
    await world.ask(min_weights_version=3)
    await world.until(lambda: worker.service._tenure.num_held == 0)
    assert worker.engine.budgets == []

    await world.publish_weights(3)
    await world.until_acked()

    assert {segment.weights_version for segment in await world.said(SegmentSampled)} == {3}


@pytest.mark.parametrize("step", [Step.FETCH, Step.READ, Step.PAUSE, Step.LOAD])
async def test_a_step_that_hangs_is_cut_short_and_its_culprit_named(world: World, monkeypatch, step: Step):
    """Sampling goes on with the old weights, and the same version is tried again."""
    monkeypatch.setattr(tenure_module, "DEADLINE_SECONDS", dict.fromkeys(Step, 0.05))
    worker = await world.ready()
    hang_once(monkeypatch, worker.engine, step)
    await world.ask(max_tokens=4)
    await world.until(lambda: worker.engine.requests)

    with capture_logs() as lines:
        await world.publish_weights(1)
        await world.until(lambda: any(line["event"] == "weights.skipped" for line in lines))
        await world.until(lambda: not worker.engine.is_paused)
        worker.engine.step(2)
        await world.until(lambda: worker.engine.weights_version == 1 and not worker.engine.is_paused)
    worker.engine.step(2)
    await world.until_acked()

    (skipped,) = [line for line in lines if line["event"] == "weights.skipped"]
    assert (skipped["step"], skipped["culprit"], skipped["sampling_with"]) == (step.name.lower(), step.value, 0)
    assert [segment.weights_version for segment in await world.said(SegmentSampled)] == [0, 1]
    assert await world.tokens() == [1003 + n for n in range(4)]


@pytest.mark.parametrize("num_turns", range(6))
async def test_a_cancellation_that_meets_a_hint_is_not_swallowed(world: World, num_turns: int):
    """Leaving a run must not wait for ever for a follower that was cancelled just as it woke."""
    worker = await world.ready()
    following = worker.service._tenure._following
    await asyncio.sleep(0.02)
    worker.service._tenure._follower.poke()
    for _ in range(num_turns):
        await asyncio.sleep(0)
    following.cancel()

    async with asyncio.timeout(1):
        await asyncio.wait([following])
    assert following.cancelled()


async def test_a_long_freeze_is_not_taken_for_a_hanging_engine(world: World, monkeypatch):
    """The device was the trainer's for longer than a stall may be, and saying WeightsLoaded takes its time."""
    monkeypatch.setattr("seamlessflow_rollout_worker.worker_monitor.OBSERVE_SECONDS", 0.01)
    worker = await world.ready()
    worker.service._settings.stall_seconds = 0.2
    await world.ask(max_tokens=2)
    await world.until(lambda: worker.engine.requests)
    await world.lease(Role.TRAIN)
    await world.until_said(RoleReleased)
    await world.publish_weights(1)
    publish_loaded = weights_module.publish_loaded

    async def slowly(*arguments, **options):
        await asyncio.sleep(0.1)
        await publish_loaded(*arguments, **options)

    monkeypatch.setattr(weights_module, "publish_loaded", slowly)
    await asyncio.sleep(0.5)
    await world.lease()
    await world.until_said(RoleTaken, 2)
    worker.engine.step(2)
    await world.until_acked()

    assert not worker.task.done()


def hang_once(monkeypatch, engine, step: Step) -> None:
    """Let one step of the next update take half a second (fetching) or for ever (in the engine)."""
    hung: list[Step] = []

    def once(call):
        def wrapped(*arguments):
            if not hung:
                hung.append(step)
                time.sleep(0.5)
            return call(*arguments)

        return wrapped

    if step is Step.FETCH:
        monkeypatch.setattr(LocalVersions, "fetch", once(LocalVersions.fetch))
    else:
        engine.hangs_in = step.name.lower()
