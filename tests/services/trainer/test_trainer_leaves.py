"""SIGTERM keeps the steps that were taken; where it cannot, the accounts are those of a kill.

when SIGTERM comes                            what is committed
waiting for groups, or for the device         every step taken
in a step, before its last micro-batch        every step before it
in a step, after its last micro-batch         that step too
weights of a learned step not published       nothing further: the learner stands at no step
the store refuses, or takes too long          nothing further
a later line began, or the lease moved        nothing further: the groups are another's
killed at any line of that commit             the same, said by the next line
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from seamlessflow.checkpoints.commit_claim import CommitClaim
from seamlessflow.contracts import BatchReady, GroupTrained, Role, StepsCommitted, StepTaken, TrainerStarted, TrainingEnded
from seamlessflow.errors import Damaged, Unavailable
from seamlessflow.runtime import DeviceLock
from seamlessflow.store.large_payloads import Store
from seamlessflow_trainer import service
from seamlessflow_trainer.learner.learner import Learner
from seamlessflow_trainer.steps.checkpoints import BARRIER, Checkpoint, CheckpointStore, Snapshot
from seamlessflow_trainer.weights.publisher import WeightsPublisher
from tests.services.trainer.trainer_accounts import check_accounts, feed, on_subject, until_all_is_acknowledged
from tests.services.trainer.trainer_world import NODE, RUN, World

MakeWorld = Callable[..., Awaitable[World]]
NUM_STEPS = 3
GROUPS = [f"g{n}" for n in range(2 * NUM_STEPS)]


async def open_world(make_world: MakeWorld) -> World:
    """Three steps and no checkpoint on the way."""
    world = await make_world(steps=NUM_STEPS, max_staleness=9)
    await world.lease(Role.TRAIN)
    return world


async def finishes(world: World, groups: list[str]) -> TrainerStarted:
    """The next trainer gets what is left and takes the run to its end with the accounts in order; how it began."""
    await world.lease(Role.TRAIN)
    feeder = asyncio.create_task(feed(world, groups))
    async with world.trainer():
        await world.hears(TrainingEnded)
        await until_all_is_acknowledged(world)
    await feeder
    await check_accounts(world, GROUPS, num_steps=NUM_STEPS)
    return (await world.heard(TrainerStarted))[-1]


async def committed(world: World) -> list[int]:
    return [said.step for said in await world.heard(StepsCommitted)]


async def takes_two_steps(world: World) -> None:
    await feed(world, GROUPS[:4])
    await world.hears(StepTaken, count=2)


async def test_steps_since_the_last_checkpoint_are_committed(make_world: MakeWorld) -> None:
    """Said, acknowledged, and where the next line begins."""
    world = await open_world(make_world)
    async with world.trainer():
        await takes_two_steps(world)
        assert await committed(world) == []

    assert await committed(world) == [2]
    assert [(g.group, g.step) for g in await world.heard(GroupTrained)] == [("g0", 1), ("g1", 1), ("g2", 2), ("g3", 2)]
    assert await world.queued() == 0
    assert (await finishes(world, GROUPS[4:])).step == 2


async def test_without_a_step_there_is_nothing_to_say(make_world: MakeWorld) -> None:
    """No checkpoint of the base model, no commit."""
    world = await open_world(make_world)
    async with world.trainer():
        await world.hears(TrainerStarted)

    assert await committed(world) == [] and world.store.folders(f"{RUN}/checkpoints") == [BARRIER]


async def test_a_batch_that_waits_for_the_device_is_handed_back(make_world: MakeWorld) -> None:
    """The step before it is kept; its own samples are for the next line."""
    world = await open_world(make_world)
    async with world.trainer():
        await feed(world, GROUPS[:2])
        await world.hears(StepTaken)
        await world.lease(Role.ROLLOUT)
        await asyncio.sleep(0.7)  # until the lease is seen
        await feed(world, GROUPS[2:4])
        await world.hears(BatchReady, count=2)

    assert await committed(world) == [1]
    assert await world.queued() == 4
    assert (await finishes(world, GROUPS[4:])).step == 1


@pytest.mark.parametrize("is_late", [False, True], ids=["before_it", "after_it"])
async def test_a_step_in_progress_ends_either_way(
    is_late: bool, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM in the second step, before or after its last micro-batch: given up, or published, said and committed."""
    world, second, real_train = await open_world(make_world), threading.Event(), Learner.train_parts
    steps = iter(range(1, 99))

    def slow_train(
        learner: Learner, parts: Any, *, learning_rate: float, num_nodes: int, should_stop: Callable[[], bool]
    ) -> Any:
        if next(steps) != 2:
            return real_train(learner, parts, learning_rate=learning_rate, should_stop=should_stop)
        figures = real_train(learner, parts, learning_rate=learning_rate) if is_late else None
        second.set()
        while not should_stop():
            time.sleep(0.01)
        return figures or real_train(learner, parts, learning_rate=learning_rate, should_stop=should_stop)

    monkeypatch.setattr(Learner, "train_parts", slow_train)
    async with world.trainer():
        await feed(world, GROUPS[:4])
        await asyncio.to_thread(second.wait, 30)

    assert await committed(world) == [2 if is_late else 1]
    assert (await finishes(world, GROUPS[4:])).step == (2 if is_late else 1)


async def test_a_step_that_is_learned_and_not_published_is_not_committed(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner stands at no step: neither that one nor the one before it can be kept, and both are done again."""
    world, waits, real_publish = await open_world(make_world), asyncio.Event(), WeightsPublisher.publish

    async def publish(publisher: WeightsPublisher, weights: Any, *, step: int, epoch: int) -> Any:
        if step == 2:
            waits.set()
            await asyncio.Event().wait()
        return await real_publish(publisher, weights, step=step, epoch=epoch)

    with monkeypatch.context() as patched:
        patched.setattr(WeightsPublisher, "publish", publish)
        patched.setattr(service, "FINISH_SECONDS", 0.3)
        async with world.trainer():
            await feed(world, GROUPS[:4])
            await asyncio.wait_for(waits.wait(), 30)

    assert await committed(world) == [] and world.store.folders(f"{RUN}/checkpoints") == [BARRIER]
    assert (await finishes(world, GROUPS[4:])).step == 0


async def test_a_store_that_refuses_is_not_waited_for(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer leaves when its time is over; nothing was said, and the steps are done again."""
    world = await open_world(make_world)
    monkeypatch.setattr(service, "FINISH_SECONDS", 0.5)
    in_the_way = world.folder / "store" / RUN / "checkpoints"
    async with world.trainer():
        await takes_two_steps(world)
        shutil.rmtree(in_the_way)
        in_the_way.write_text("a file where a folder should be")
        left_at = time.monotonic()
    took_seconds = time.monotonic() - left_at
    in_the_way.unlink()

    assert took_seconds < 5
    assert await committed(world) == [] and await world.heard(GroupTrained) == []
    assert (await finishes(world, GROUPS[4:])).step == 0


async def test_a_line_that_was_succeeded_commits_nothing(make_world: MakeWorld) -> None:
    """Another trainer claimed the run and goes on from the last checkpoint: our groups are its groups."""
    world = await open_world(make_world)
    async with world.trainer():
        await takes_two_steps(world)
        await CommitClaim(world.bus, world.journal, RUN, "trainer another").take()

    assert await committed(world) == [] and await world.heard(GroupTrained) == []


async def test_a_lease_that_moved_commits_nothing(make_world: MakeWorld) -> None:
    """Only SIGTERM keeps: where the run goes to another node, that one may have begun already."""
    world = await open_world(make_world)
    async with world.trainer():
        await takes_two_steps(world)
        await world.lease(Role.IDLE, run=None, trainer=False)
        lock = DeviceLock(world.folder / "work", NODE)
        await asyncio.wait_for(lock.take(), 10)  # it has left
        lock.release()

    assert await committed(world) == [] and await world.heard(GroupTrained) == []


@pytest.mark.parametrize("after_storing", [False, True], ids=["unsaid", "said"])
@pytest.mark.parametrize(("ending", "occurrence"), [(".closed", 1), (".closed", 4), ("training.commits", 2)])
async def test_killed_while_it_commits_the_next_line_says_the_same(
    ending: str, occurrence: int, after_storing: bool, make_world: MakeWorld
) -> None:
    """Killed before the commit, the checkpoint is garbage and both steps are taken again; after it, each group is trained once,
    by the step that was kept."""
    world = await open_world(make_world)
    async with world.trainer(on_subject(ending, occurrence), after_storing=after_storing) as bus:
        await takes_two_steps(world)
        assert not bus.died.is_set()

    assert bus.died.is_set()
    is_committed = after_storing or ending == ".closed"
    assert (await finishes(world, GROUPS[4:])).step == (2 if is_committed else 0)
    assert await committed(world) == ([2, 3] if is_committed else [3])


def test_a_checkpoint_given_up_in_the_middle_does_not_exist(tmp_path: Path) -> None:
    """As by a kill before the manifest: the one before it is untouched."""
    checkpoints = CheckpointStore(Store(f"file://{tmp_path}"), RUN, tmp_path / "work")
    tensors = Snapshot({"w": torch.ones(2)}, {"rng.cpu": torch.get_rng_state()})
    whole = checkpoints.write(Checkpoint(1, 1, (), "n1"), tensors)
    asked = iter([False, False, True])
    with pytest.raises(Unavailable, match="given up"):
        checkpoints.write(Checkpoint(2, 1, (), "n1"), tensors, lambda: next(asked))

    folders = [f"{RUN}/checkpoints/{name}" for name in Store(f"file://{tmp_path}").folders(f"{RUN}/checkpoints")]
    assert checkpoints.read(whole)[0].step == 1
    for folder in set(folders) - {whole}:
        with pytest.raises(Damaged):
            checkpoints.read(folder)
