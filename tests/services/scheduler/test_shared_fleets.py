"""A fleet under a scheduler over a bus: runs that share it or wait for it, and processes that are missing or die."""

from __future__ import annotations

import asyncio

import pytest

from seamlessflow.bus.base import Message, Stored
from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.contracts import BatchReady, EpisodeOpened, GroupAdmitted, Role, RunPhase, TrainerStarted
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import Unavailable
from seamlessflow_scheduler import service
from tests.services.scheduler.scheduler_bench import MACHINE, TRAINER, Bench, until
from tests.services.scheduler.scheduler_history import check_the_history
from tests.services.scheduler.scheduler_world import RUN, tasks


async def test_two_runs_share_one_machine_one_after_the_other(bench: Bench):
    """The second names the run whose nodes it waits for, then gets them with higher epochs."""
    await bench.start()
    await bench.announce()
    await bench.request("r1")
    await bench.request("r2")

    async def queued() -> bool:
        state = await bench.state("r2")
        return state.phase is RunPhase.QUEUED and "run r1 has them" in state.reason

    await until(queued)
    for run in ("r1", "r2"):
        bench.live(run)
        await bench.submit(run, train=8)
    first, second = await bench.until_ended("r1"), await bench.until_ended("r2")

    assert {first.reason, second.reason} <= {"completed", "tasks_ended"}
    for run in ("r1", "r2"):
        await check_the_history(bench, run)


async def test_what_is_missing_is_said_in_runs_and_in_the_presence(bench: Bench):
    """No trainer: everybody who looks can read what is waited for; when it comes the run goes on."""
    context = await bench.start()
    await bench.announce({key: what for key, what in MACHINE.items() if key[1] != TRAINER})
    await bench.request()

    async def says_so() -> bool:
        state = await bench.state()
        return state.reason.startswith("no node with capability train") and "capability train" in context.presence.status.state

    await until(says_so)
    await bench.announce()
    bench.live()
    await bench.submit()
    await bench.until_ended()


async def test_a_trainer_that_dies_in_train_gives_the_device_back_to_rollout(bench: Bench):
    """A batch waits and no node can train on it: the worker rolls out meanwhile; the trainer comes back to its place."""
    await bench.start(gone_seconds=30.0)
    await bench.announce()
    await bench.request()
    bench.live()
    await bench.submit(train=40)

    async def role_is(role: Role) -> bool:
        lease = await bench.lease("gpu")
        return lease is not None and lease.role is role

    await until(lambda: role_is(Role.ROLLOUT))
    bench.worlds.pop().cancel()
    await bench.journal.publish(TrainerStarted(run=RUN, line=9, step=0, weights_version=99))
    await bench.journal.publish(BatchReady(run=RUN, step=1, line=9, num_groups=2, num_tokens=1))
    await until(lambda: role_is(Role.TRAIN))
    await bench.vanish("gpu", TRAINER)
    await until(lambda: role_is(Role.ROLLOUT))
    assert (await bench.lease("gpu")).trainer
    await bench.announce()
    await until(lambda: role_is(Role.TRAIN))


@pytest.mark.parametrize("how", ["refuses", "hangs"])
async def test_a_run_whose_journal_does_not_answer_delays_no_other_run(bench: Bench, monkeypatch, how: str):
    """Neither a question to it nor an event that is being published into it."""
    ask, publish = MemoryBus.stream_bytes, MemoryBus.publish

    async def stream_bytes(bus: MemoryBus, stream: str) -> int:
        if how == "refuses" and stream == journal_stream("away"):
            raise Unavailable("this journal has no leader")
        return await ask(bus, stream)

    async def never_stored(bus: MemoryBus, message: Message) -> Stored:
        if how == "hangs" and message.subject.startswith(subject_filter(GroupAdmitted, run="away").partition("*")[0]):
            await asyncio.Event().wait()
        return await publish(bus, message)

    monkeypatch.setattr(service, "RUN_TICK_SECONDS", 0.2)
    monkeypatch.setattr(MemoryBus, "publish", never_stored)
    await bench.start()
    await bench.announce()
    await bench.request("away", fleet={"journal_bytes": 10_000_000})
    await bench.request("there")
    await until(lambda: bench.has_journal("there"))
    await until(lambda: bench.has_journal("away"))
    await asyncio.sleep(0.2)
    monkeypatch.setattr(MemoryBus, "stream_bytes", stream_bytes)
    for run in ("away", "there"):
        await bench.journal.publish_all(tasks("t", 4, run=run))

    async def is_opened() -> bool:
        return len(await bench.events("there", EpisodeOpened)) == 8

    await until(is_opened)
    assert await bench.events("away", EpisodeOpened) == []
