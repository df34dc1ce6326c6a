"""A gang: several nodes hold their devices for the steps of one of them.

lease (trainer no)   what the process does
train                takes the device lock, says RoleTaken, joins no run, keeps the lock
another role         lets go, says RoleReleased for that lease
another run, none    lets go, says RoleReleased to the run it held the device for
killed in between    its lock is gone with it; the next process says at its first lease that nothing is held
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import Event, Lease, Role, RoleReleased, RoleTaken, StepTaken, TrainerStarted, WeightsPublished
from seamlessflow.contracts.streams import run_streams
from seamlessflow.errors import Unavailable
from seamlessflow.runtime import DeviceLock, Journal
from seamlessflow.store.large_payloads import Store
from seamlessflow_trainer import device_turn
from seamlessflow_trainer.config import TrainerSettings
from seamlessflow_trainer.data.batch import TrainingBatch
from seamlessflow_trainer.device_turn import DeviceTurn
from seamlessflow_trainer.learner.base import StepFigures
from tests.services.trainer.trainer_world import NODE, RUN, World, by_index

MakeWorld = Callable[..., Awaitable[World]]


def is_free(lock: DeviceLock) -> bool:
    """Whether nobody holds the device; it is free afterwards as before."""
    try:
        lock.take().send(None)
    except StopIteration:
        lock.release()
        return True
    return False


async def roles_said(world: World) -> list[tuple[str, int, str]]:
    return [(type(e).__name__, e.epoch, e.service) for e in await world.heard(RoleTaken, RoleReleased)]


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_member_holds_its_device_and_joins_nothing(make_world: MakeWorld) -> None:
    """Taken when the worker let go of it, released at the next lease; no line begins, no weights are published."""
    world = await make_world()
    device = DeviceLock(world.folder / "work", NODE)
    async with world.trainer():
        await device.take()  # as the node's rollout-worker
        taken = await world.lease(Role.TRAIN, trainer=False, gang=("lead", NODE))
        await asyncio.sleep(0.1)
        assert await roles_said(world) == []

        device.release()
        await world.hears(RoleTaken)
        assert not is_free(device)

        released = await world.lease(Role.ROLLOUT, trainer=False)
        await world.hears(RoleReleased)
        assert is_free(device)
        assert await roles_said(world) == [("RoleTaken", taken, "trainer"), ("RoleReleased", released, "trainer")]
        assert await world.heard(TrainerStarted, WeightsPublished) == []


async def test_a_member_that_was_never_lent_says_nothing_of_roles_it_has_no_part_in(make_world: MakeWorld) -> None:
    """Only the first lease a process sees is answered in any case: an earlier process may have died with the device."""
    world = await make_world()
    async with world.trainer():
        first = await world.lease(Role.ROLLOUT, trainer=False)
        await world.hears(RoleReleased)
        await world.lease(Role.IDLE, trainer=False)
        await world.lease(Role.ROLLOUT, trainer=False)
        await asyncio.sleep(0.1)

    assert await roles_said(world) == [("RoleReleased", first, "trainer")]


async def test_a_member_becomes_the_lead_and_a_member_again(make_world: MakeWorld) -> None:
    """As the lead it joins and steps; as a member it leaves its line, and holds the device all the same."""
    world, device = await make_world(steps=5), DeviceLock(Path(), "nobody")
    async with world.trainer():
        await world.lease(Role.TRAIN, trainer=False, gang=("other", NODE))
        await world.hears(RoleTaken)
        device = DeviceLock(world.folder / "work", NODE)

        await world.lease(Role.TRAIN, trainer=True, gang=(NODE, "other"))
        await world.hears(TrainerStarted)
        policy = await world.policy()
        for group in ("a", "b"):
            await world.answer(group, by_index(), policy=policy)
        await world.hears(StepTaken)

        again = await world.lease(Role.TRAIN, trainer=False, gang=("other", NODE))
        await world.hears(RoleTaken, count=3)
        assert not is_free(device)
        assert await world.queued() > 0  # handed back for the next lead

        free = await world.lease(Role.ROLLOUT, trainer=False)
        await world.hears(RoleReleased)
        assert is_free(device)
    assert (await roles_said(world))[-2:] == [("RoleTaken", again, "trainer"), ("RoleReleased", free, "trainer")]


class CountingLearner:
    """One weight that counts steps. ``num_nodes_seen``: of every step."""

    vocab_size = 24

    def __init__(self) -> None:
        self.count = torch.zeros(1)
        self.num_nodes_seen: list[int] = []

    def train_parts(
        self, parts: Iterable[TrainingBatch], *, learning_rate: float, num_nodes: int, should_stop: Callable[[], bool]
    ) -> StepFigures:
        assert sum(len(part.groups) for part in parts) == 2
        self.num_nodes_seen.append(num_nodes)
        self.count += 1
        return StepFigures()

    def weights(self) -> dict[str, torch.Tensor]:
        return {"count": self.count}

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        return {"rng.cpu": torch.get_rng_state()}

    def restore(self, weights: Any, optimizer_state: Any) -> None:
        self.count = weights["count"].clone()


async def test_a_learner_of_ones_own_is_told_how_many_nodes_take_each_step(make_world: MakeWorld) -> None:
    """By the lease under which the step begins: alone, then as three, then without one that is gone."""
    world, learner = await make_world(steps=3), CountingLearner()

    def build(folder: Path, config: RunConfig, settings: TrainerSettings) -> CountingLearner:
        assert (folder / "config.json").exists() and config.algorithm.steps == 3
        return learner

    epoch = 0
    async with world.trainer(build=build):
        for step, gang in enumerate([(), (NODE, "b", "c"), (NODE, "c")], start=1):
            epoch = await world.lease(Role.TRAIN, gang=gang)
            await world.hears(RoleTaken, count=step)
            await world.hears(WeightsPublished, count=step)
            for group in (f"a{step}", f"b{step}"):
                await world.answer(group, by_index(), policy=await plain_policy(world))
            await world.hears(StepTaken, count=step)

    assert learner.num_nodes_seen == [1, 3, 2]
    assert [e.epoch for e in await world.heard(RoleTaken)][-1] == epoch


async def plain_policy(world: World) -> Any:
    """Answers of the base model, said to be the newest version's."""
    from tests.services.trainer.trainer_world import Policy

    version = (await world.heard(WeightsPublished))[-1].weights_version
    return Policy(weights={}, version=version, temperature=0.7, model=world.model)


MEMBER = """
import asyncio, sys
from pathlib import Path
from seamlessflow.runtime import DeviceLock

async def main():
    lock = DeviceLock(Path(sys.argv[1]), sys.argv[2])
    await lock.take()
    print("held", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_member_that_is_killed_leaves_its_device_free_and_its_successor_says_so(make_world: MakeWorld) -> None:
    """kill -9 of a process that holds the lock: the next one answers its first lease, and takes the device at the second."""
    world = await make_world()
    work = world.folder / "work"
    work.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEMBER, str(work), NODE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).strip() == b"held"
    taken = await world.lease(Role.TRAIN, trainer=False, gang=("lead", NODE))
    await world.journal.publish(RoleTaken(run=RUN, node=NODE, epoch=taken, service="trainer"))  # the killed one's words
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()

    released = await world.lease(Role.ROLLOUT, trainer=False)
    async with world.trainer():
        assert (await world.hears(RoleReleased)).epoch == released
        again = await world.lease(Role.TRAIN, trainer=False, gang=("lead", NODE))
        assert (await world.hears(RoleTaken, count=2)).epoch == again


async def test_killed_with_the_lease_unchanged_the_successor_takes_the_device_at_once(make_world: MakeWorld) -> None:
    """It says so again under the same epoch: whoever counts devices hears nothing new."""
    world = await make_world()
    taken = await world.lease(Role.TRAIN, trainer=False, gang=("lead", NODE))
    async with world.trainer() as bus:
        await world.hears(RoleTaken)
        await bus.abort()
        bus.died.set()
    async with world.trainer():
        await until(lambda: not is_free(DeviceLock(world.folder / "work", NODE)))
        await asyncio.sleep(0.05)
    assert {(e.epoch, e.service) for e in await world.heard(RoleTaken)} == {(taken, "trainer")}


class Hearing:
    """Takes what is said, after so many failures."""

    def __init__(self, num_failures: int = 0) -> None:
        self.said: list[Event] = []
        self._num_failures = num_failures

    async def publish(self, event: Event) -> None:
        if self._num_failures:
            self._num_failures -= 1
            raise Unavailable("the journal is away")
        self.said.append(event)


def train_lease(epoch: int) -> Lease:
    return Lease(run=RUN, role=Role.TRAIN, epoch=epoch, gang=("lead", NODE))


async def test_what_could_not_be_said_is_said_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang waits until it hears that its member has its device."""
    monkeypatch.setattr(device_turn, "REPUBLISH_SECONDS", 0.01)
    hearing = Hearing(num_failures=2)
    turn = DeviceTurn(DeviceLock(tmp_path, NODE), hearing, NODE)
    await turn.on_lease(train_lease(3))

    await until(lambda: hearing.said)

    assert hearing.said == [RoleTaken(run=RUN, node=NODE, epoch=3, service="trainer")]
    await turn.release()


async def test_a_newer_lease_to_train_does_not_begin_the_loading_anew(tmp_path: Path) -> None:
    """Gangs change often; what is being loaded is loaded once, and said under the newest lease."""
    loaded, hearing = Loaded(), Hearing()
    turn = DeviceTurn(DeviceLock(tmp_path, NODE), hearing, NODE, loaded)
    for epoch in (1, 2, 3):
        await turn.on_lease(train_lease(epoch))
        await asyncio.sleep(0.001)

    await until(lambda: [each for each in hearing.said if each.epoch == 3])

    assert loaded.num_loads == 1
    await turn.release()


class Loaded:
    """Optimizer state that takes a moment to come and to go."""

    is_there = False
    num_loads = 0

    async def load(self) -> None:
        assert not self.is_there
        self.num_loads += 1
        await asyncio.sleep(0.003)
        self.is_there = True

    async def unload(self) -> None:
        await asyncio.sleep(0.003)
        self.is_there = False


LEASES = st.lists(
    st.tuples(
        st.sampled_from([None, "r", "other"]),
        st.sampled_from([Role.TRAIN, Role.ROLLOUT, Role.IDLE]),
        st.booleans(),
        st.floats(0, 0.02),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(leases=LEASES, seed=st.integers(0, 99))
async def test_whatever_leases_come_the_device_is_held_exactly_when_the_last_one_says_train(
    leases: list[tuple[str | None, Role, bool, float]], seed: int, tmp_path: Path
) -> None:
    """In any order and pace, with a rollout-worker that keeps the device for a moment, and something that has to be loaded;
    and each run that heard RoleTaken of an earlier lease has heard RoleReleased since."""
    dice, bus, work = random.Random(seed), MemoryBus(MemoryServer()), tmp_path / str(random.random())
    for name in ("r", "other"):
        for stream in run_streams(name):
            if stream.source is None:
                await bus.ensure_stream(stream)
    journal, lock = Journal(bus, Store(f"file://{work}/store")), DeviceLock(work, NODE)
    worker, state = DeviceLock(work, NODE), Loaded()
    turn = DeviceTurn(lock, journal, NODE, state)

    for epoch, (run, role, trainer, seconds) in enumerate(leases, start=1):
        if is_free(worker) and dice.random() < 0.5:
            await worker.take()
            asyncio.get_running_loop().call_later(0.005, worker.release)
        await turn.on_lease(Lease(run=run, role=role, epoch=epoch, trainer=trainer))
        await asyncio.sleep(seconds)

    last_run, last_role, _, _ = leases[-1]
    wants = last_run is not None and last_role is Role.TRAIN
    await until(lambda: lock.held == wants and state.is_there == wants and not worker.held)
    await asyncio.sleep(0)
    for name in ("r", "other"):
        heard = [await journal.open(r) async for r in bus.read(f"J_{name}")]
        taken = max((e.epoch for e in heard if isinstance(e, RoleTaken)), default=0)
        released = max((e.epoch for e in heard if isinstance(e, RoleReleased)), default=0)
        if taken and not (wants and name == last_run):
            assert released > taken
    await turn.release()
    await bus.close()
