"""Lines of a run: one more than the newest, and the end of a trainer whose claim on the commits is no longer the newest.

another claim is newer, and our lease    what the older process does
still says trainer                       ends with an error, hands its samples back, lets go of the device, commits nothing
says another node is                     hands its samples back, and is quiet until its lease sends it away
"""

from __future__ import annotations

import asyncio
import runpy
import threading
from collections.abc import Awaitable, Callable

import pytest

from seamlessflow.bus.memory import stream
from seamlessflow.checkpoints.commit_claim import CommitClaim
from seamlessflow.contracts import Role, StepsCommitted, StepTaken, TrainerClaimed, TrainerStarted, TrainingEnded
from seamlessflow.errors import Superseded, Unavailable
from seamlessflow.runtime import DeviceLock
from seamlessflow_trainer import incarnations
from seamlessflow_trainer.incarnations import LONGEST_PAUSE_SECONDS, pause_seconds
from seamlessflow_trainer.learner.base import Abandoned
from seamlessflow_trainer.learner.learner import Learner
from seamlessflow_trainer.weights.publisher import WeightsPublisher
from tests.services.trainer.test_trainer_gang import is_free, until
from tests.services.trainer.trainer_accounts import feed
from tests.services.trainer.trainer_world import NODE, RUN, World

MakeWorld = Callable[..., Awaitable[World]]


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incarnations, "LOOK_SECONDS", 0.02)


def claim_of(world: World) -> CommitClaim:
    """Another trainer's, not taken yet."""
    return CommitClaim(world.bus, world.journal, RUN, "trainer another")


async def test_the_older_of_two_trainers_of_one_name_ends_and_says_why(make_world: MakeWorld) -> None:
    """Not with 0; the step it took is not committed, and its samples are for the other one at once."""
    world = await make_world(steps=3, max_staleness=9)
    await world.lease(Role.TRAIN)
    device = DeviceLock(world.folder / "work", NODE)

    with pytest.raises(Superseded, match=f"claim of line 1 on run {RUN} is not the newest.*line 2.*{NODE}.*SEAMLESSFLOW_NODE"):
        async with world.trainer():
            await feed(world, ["g0", "g1"])
            await world.hears(StepTaken)
            assert not is_free(device)
            await claim_of(world).take()
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
            await claim_of(world).take()
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
    """The claim is another node's by right; this one hands its samples back and leaves by its lease, which is on its way."""
    world = await make_world(max_staleness=9)
    await world.lease(Role.ROLLOUT)
    async with world.trainer() as bus:
        await world.hears(TrainerStarted)
        await world.lease(Role.ROLLOUT, trainer=False)
        await claim_of(world).take()
        await asyncio.sleep(0.3)
        assert bus.user is not None and not bus.user.done()


async def test_a_trainer_that_gets_its_lease_back_begins_another_line(make_world: MakeWorld) -> None:
    """Also where it never saw the lease in between, which was another node's."""
    world = await make_world(max_staleness=9)
    await world.lease(Role.ROLLOUT)
    async with world.trainer():
        await world.hears(TrainerStarted)
        await world.lease(Role.ROLLOUT, trainer=False)
        other = claim_of(world)
        await other.take()
        await asyncio.sleep(0.2)
        await world.lease(Role.ROLLOUT)
        again = await world.hears(TrainerStarted, count=2)

    assert [each.line for each in await world.heard(TrainerClaimed)] == [1, 2, 3]
    assert again.line == 3


async def test_lines_count_on_from_trainers_that_knew_no_claims(make_world: MakeWorld) -> None:
    """An earlier release began lines by TrainerStarted alone."""
    world = await make_world()
    await world.journal.publish(TrainerStarted(run=RUN, line=6, step=0, weights_version=0))

    claims = [claim_of(world) for _ in range(3)]
    await asyncio.gather(*(claim.take() for claim in claims))

    assert sorted(claim.line for claim in claims) == [7, 8, 9]
    assert [each.line for each in await world.heard(TrainerClaimed)] == [7, 8, 9]


async def test_processes_that_take_a_run_from_each_other_wait_longer_each_time(make_world: MakeWorld) -> None:
    """One lost claim costs nothing; of a minute full of them each costs twice as much as the one before, up to a bound."""
    world = await make_world()
    pauses = []
    for _ in range(9):
        await claim_of(world).take()
        pauses.append(await pause_seconds(claim_of(world)))

    assert pauses == [0, 0, 1, 3, 7, 15, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]


async def test_old_claims_make_no_process_wait(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was resumed many times is not contended for: only the server's last minute counts."""
    world = await make_world()
    real = stream.time.time
    monkeypatch.setattr(stream.time, "time", lambda: real() - incarnations.CONTENTION_SECONDS - 1)
    for _ in range(5):
        await claim_of(world).take()
    monkeypatch.setattr(stream.time, "time", real)
    await claim_of(world).take()

    assert await pause_seconds(claim_of(world)) == 0


def test_the_process_exits_with_1_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for people, no traceback."""

    def superseded(service: object, main: object) -> None:
        raise Superseded("line 2 began")

    monkeypatch.setattr("seamlessflow.runtime.run_service", superseded)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("seamlessflow_trainer", run_name="__main__")

    assert ended.value.code == "trainer ends: line 2 began"


async def test_a_trainer_that_is_sent_away_while_its_line_ends_is_gone(make_world: MakeWorld, monkeypatch) -> None:
    """The new claim and the new lease are seen in the same second, while a step is in its thread: no other line begins."""
    world, in_step, go_on = await make_world(steps=3, max_staleness=9), threading.Event(), threading.Event()

    def slow_train(*arguments: object, **options: object) -> None:
        in_step.set()
        go_on.wait(20)
        raise Abandoned("given up")

    monkeypatch.setattr(Learner, "train_parts", slow_train)
    await world.lease(Role.TRAIN)
    async with world.trainer():
        await feed(world, ["g0", "g1"])
        await asyncio.to_thread(in_step.wait, 20)
        await claim_of(world).take()
        await asyncio.sleep(0.2)  # the line ends, and waits for its thread
        await world.lease(Role.IDLE, trainer=False)
        await asyncio.sleep(0.2)  # sent away meanwhile
        go_on.set()
        await asyncio.sleep(0.3)
        await world.lease(Role.ROLLOUT)
        started = await world.hears(TrainerStarted, count=2)

    assert started.line == 3
