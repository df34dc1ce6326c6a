"""Lines of a run: counted on by whoever begins one, and the end of the older of two trainers with one name.

a later line began, and our lease    what the older process does
still says trainer                   ends with an error, hands its samples back, lets go of the device, commits nothing
says another node is                 waits for that lease, which sends it away in order
"""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Awaitable, Callable

import pytest
from test_trainer_gang import is_free, until
from trainer_accounts import feed
from trainer_world import NODE, RUN, World

from seamlessflow.bus.memory import MemoryBus
from seamlessflow.contracts import Role, Service, StepsCommitted, StepTaken, TrainerStarted, TrainingEnded
from seamlessflow.errors import Unavailable
from seamlessflow.runtime import DeviceLock, make_context
from services.trainer import living
from services.trainer.config import TrainerSettings
from services.trainer.living import Superseded, begin_line, until_superseded
from services.trainer.publishing import WeightsPublisher

MakeWorld = Callable[..., Awaitable[World]]


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(living, "LOOK_SECONDS", 0.02)


def context_of(world: World):
    settings = TrainerSettings(store_url=world.store.url, node=NODE, work_dir=world.folder, model_cache=world.folder)
    return make_context(Service.TRAINER, settings, MemoryBus(world.server), capabilities=("train",))


def began(line: int, weights_version: int = 99) -> TrainerStarted:
    return TrainerStarted(run=RUN, line=line, step=0, weights_version=weights_version)


async def test_the_older_of_two_trainers_of_one_name_ends_and_says_why(make_world: MakeWorld) -> None:
    """Not with 0; the step it took belongs to an abandoned line, and its samples are for the other one at once."""
    world = await make_world(steps=3, max_staleness=9)
    await world.lease(Role.TRAIN)
    device = DeviceLock(world.folder / "work", NODE)

    with pytest.raises(Superseded, match=f"line 2 of run {RUN} began while line 1 .* node {NODE} .*SEAMLESSFLOW_NODE"):
        async with world.trainer():
            await feed(world, ["g0", "g1"])
            await world.hears(StepTaken)
            assert not is_free(device)
            await world.speaker.say(began(2))
            await until(lambda: is_free(device))

    assert await world.heard(StepsCommitted) == []
    assert await world.queued() == 4


async def test_the_older_of_two_does_not_end_the_run_for_the_other(make_world: MakeWorld) -> None:
    """Also where it has nothing to commit: that it learns nothing more is no end of training."""
    world = await make_world(steps=3, max_staleness=9)
    await world.lease(Role.TRAIN)
    with pytest.raises(Superseded):
        async with world.trainer():
            await world.hears(TrainerStarted)
            await asyncio.sleep(0.1)  # it waits for groups
            await world.speaker.say(began(2))
            await asyncio.sleep(5)

    assert await world.heard(TrainingEnded) == []


async def test_a_store_that_is_away_while_old_versions_are_removed_fails_no_step(make_world: MakeWorld, monkeypatch) -> None:
    """It costs space, until the next step."""

    async def away(publisher: WeightsPublisher) -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr(WeightsPublisher, "collect", away)
    world = await make_world(steps=1)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await feed(world, ["g0", "g1"])
        await world.hears(TrainingEnded)
    assert len(await world.heard(StepsCommitted)) == 1


async def test_a_trainer_whose_lease_went_elsewhere_is_not_in_error(make_world: MakeWorld) -> None:
    """The next line is another node's by right; this one leaves by its lease, which is on its way."""
    world = await make_world()
    await world.lease(Role.ROLLOUT)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await world.lease(Role.ROLLOUT, trainer=False)
        await world.speaker.say(began(2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(until_superseded(context_of(world), RUN, 1), 0.2)


async def test_a_line_of_its_own_or_an_earlier_one_ends_nobody(make_world: MakeWorld) -> None:
    """Only what comes later counts."""
    world = await make_world()
    await world.lease(Role.ROLLOUT)
    await world.speaker.say(began(4))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(until_superseded(context_of(world), RUN, 4), 0.2)

    assert "line 4" in str(await asyncio.wait_for(until_superseded(context_of(world), RUN, 3), 5))


async def test_two_that_count_at_the_same_time_get_two_lines(make_world: MakeWorld) -> None:
    """Both read the same newest line; the journal keeps one of them under the next number, and the other counts on."""
    world = await make_world()
    await world.speaker.say(began(6, weights_version=0))

    lines = await asyncio.gather(*(begin_line(context_of(world), RUN, step=0, weights_version=w) for w in (1, 2, 3)))

    said = await world.heard(TrainerStarted)
    assert sorted(lines) == [7, 8, 9] and [each.line for each in said] == [6, 7, 8, 9]
    assert {each.line: each.weights_version for each in said[1:]} == dict(zip(lines, (1, 2, 3), strict=True))


def test_the_process_exits_with_1_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for people, no traceback."""

    def superseded(service: object, main: object) -> None:
        raise Superseded("line 2 began")

    monkeypatch.setattr("seamlessflow.runtime.run_service", superseded)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("services.trainer", run_name="__main__")

    assert ended.value.code == "trainer ends: line 2 began"
