"""A trainer killed at every line of a step and of a checkpoint: nothing is lost, nothing counts twice."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from seamlessflow.contracts import (
    Role,
    RunStopRequested,
    StepsCommitted,
    StepTaken,
    TrainerStarted,
    TrainingEnded,
    WeightsPublished,
)
from seamlessflow.contracts.routes import CONTROL_STREAM
from seamlessflow.contracts.subjects import subject_filter
from tests.services.trainer.trainer_accounts import check_accounts, feed, on_subject, until_all_is_acknowledged
from tests.services.trainer.trainer_world import RUN, World

MakeWorld = Callable[..., Awaitable[World]]
NUM_STEPS = 5


LINES = [
    ("training.started", 1),
    ("weights.0.published", 1),
    ("step.1.ready", 1),
    ("weights.2.published", 1),
    ("step.3.ready", 1),
    ("step.3.taken", 1),
    ("step.2.taken", 1),
    (".closed", 1),
    (".closed", 3),
    ("training.commits", 1),  # the claim
    ("training.commits", 2),  # the commit of step 2
    ("training.commits", 3),  # of step 4
    ("step.5.taken", 1),
    ("training.commits", 4),  # of step 5
    ("training.ended", 1),
]


@pytest.mark.parametrize("after_storing", [False, True], ids=["unsaid", "said"])
@pytest.mark.parametrize(("ending", "occurrence"), LINES)
async def test_killed_anywhere_it_goes_on(ending: str, occurrence: int, after_storing: bool, make_world: MakeWorld) -> None:
    """Checkpoints after steps 2 and 4. At the end: each group trained exactly once and in one committed step."""
    world = await make_world(steps=NUM_STEPS, every_steps=2, max_staleness=9)
    await world.lease(Role.TRAIN)
    groups = [f"g{n}" for n in range(2 * NUM_STEPS)]
    feeder = asyncio.create_task(feed(world, groups))
    async with world.trainer(on_subject(ending, occurrence), after_storing=after_storing) as bus:
        await asyncio.wait_for(bus.died.wait(), 30)
    async with world.trainer():
        await world.hears(TrainingEnded)
        await until_all_is_acknowledged(world)
    await feeder
    await check_accounts(world, groups, num_steps=NUM_STEPS)


async def test_a_resumed_line_goes_back_to_the_checkpoint(make_world: MakeWorld) -> None:
    """Killed after step 3 with a checkpoint of step 2: the next line starts at 2 under a new version number."""
    world = await make_world(steps=3, every_steps=2, max_staleness=9)
    await world.lease(Role.TRAIN)
    async with world.trainer(on_subject("step.3.taken"), after_storing=True) as bus:
        await feed(world, [f"g{n}" for n in range(4)])
        await world.hears(StepsCommitted)
        await feed(world, ["g4", "g5"])
        await asyncio.wait_for(bus.died.wait(), 30)
    async with world.trainer():
        await world.hears(TrainingEnded)

    first, second = await world.heard(TrainerStarted)
    assert (first.line, first.step, first.weights_version) == (1, 0, 0)
    assert (second.line, second.step, second.weights_version) == (2, 2, 4)
    assert [(p.weights_version, p.step) for p in await world.heard(WeightsPublished)][-2:] == [(4, 2), (5, 3)]
    repeated = [s for s in await world.heard(StepTaken) if s.step == 3]
    assert [(s.line, s.weights_version) for s in repeated] == [(1, 3), (2, 5)]
    assert sorted(repeated[0].groups) == sorted(repeated[1].groups)


async def test_a_start_without_a_checkpoint_publishes_the_base_again(make_world: MakeWorld) -> None:
    """Version numbers go on; the step is 0."""
    world = await make_world()
    await world.lease(Role.ROLLOUT)
    for count in (1, 2):
        async with world.trainer():
            await world.hears(TrainerStarted, count=count)

    published = await world.heard(WeightsPublished)
    assert [(p.weights_version, p.step) for p in published] == [(0, 0), (1, 0)]
    assert world.store.read(f"{published[0].path}/model.safetensors") == world.store.read(
        f"{published[1].path}/model.safetensors"
    )


async def test_a_trainer_of_an_ended_training_stays_quiet(make_world: MakeWorld) -> None:
    """Restarted after TrainingEnded it says nothing more."""
    world = await make_world(steps=1)
    await world.lease(Role.TRAIN)
    feeder = asyncio.create_task(feed(world, ["a", "b"]))
    async with world.trainer():
        await world.hears(TrainingEnded)
    await feeder
    said = len(await world.heard(TrainerStarted, StepTaken, StepsCommitted, WeightsPublished))
    async with world.trainer():
        await asyncio.sleep(0.8)

    assert len(await world.heard(TrainerStarted, StepTaken, StepsCommitted, WeightsPublished)) == said


async def test_a_line_that_cannot_begin_again_ends_the_training(make_world: MakeWorld, tiny_llama: Path) -> None:
    """The model's folder is gone at the second start: what was committed is said to be the end, and what failed."""
    model = Path(shutil.copytree(tiny_llama, tiny_llama.parent / "short-lived"))
    world = await make_world(model, steps=3, every_steps=1, max_staleness=9)
    await world.lease(Role.TRAIN)
    feeder = asyncio.create_task(feed(world, ["a", "b"]))
    async with world.trainer():
        await world.hears(StepsCommitted)
    await feeder
    shutil.rmtree(model)
    async with world.trainer():
        over = await world.hears(TrainingEnded)
        stop = await world.bus.last(CONTROL_STREAM, subject_filter(RunStopRequested, run=RUN))

    assert (over.step, over.weights_version) == (1, (await world.head()).weights_version)
    assert over.failure.startswith("trainer: No model named")
    assert stop is not None and len(await world.heard(TrainerStarted)) == 1
