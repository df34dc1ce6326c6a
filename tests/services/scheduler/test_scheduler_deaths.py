"""Schedulers die at any point, lead one after the other, and write leases only while they are sure that they lead."""

from __future__ import annotations

import asyncio

import pytest

from seamlessflow.bus.base import Record
from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.codec import pack_record
from seamlessflow.contracts import EpisodeOpened, Role, RunPhase, RunStarted, RunState
from seamlessflow.contracts.routes import LEASES_BUCKET, RUNS_BUCKET
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.errors import Unavailable
from seamlessflow_scheduler import service
from seamlessflow_scheduler.leadership import Leadership
from tests.services.scheduler.scheduler_bench import ROUNDS, Bench, until
from tests.services.scheduler.scheduler_history import check_the_history
from tests.services.scheduler.scheduler_world import RUN, tasks


@pytest.mark.parametrize("num_events", [30, 45, 70, 120, 160])
async def test_a_scheduler_killed_anywhere_is_replaced_without_a_trace(bench: Bench, num_events: int):
    """kill -9 after so many events, then another one: it folds the journal and goes on; epochs go on growing."""
    await bench.start()
    await bench.announce()
    await bench.request(**ROUNDS)
    bench.live(**ROUNDS)
    await bench.submit(train=20, held_out=2)

    async def far_enough() -> bool:
        return len(await bench.events()) >= num_events

    await until(far_enough)
    await bench.kill()
    await bench.start("s2")

    assert (await bench.until_ended()).reason in ("completed", "tasks_ended")
    await check_the_history(bench)


async def test_a_request_that_was_noted_and_not_carried_out_is_carried_out_by_the_next(bench: Bench):
    """A scheduler died between its note in RUNS and the journal: the request comes again, and the run begins in its place."""
    noted = RunState(phase=RunPhase.QUEUED, requested_at=123.0)
    await (await bench.bus.kv(RUNS_BUCKET)).put(RUN, pack_record(noted))
    await bench.start("s2")
    await bench.request()

    async def begun() -> bool:
        return len(await bench.events(RUN, RunStarted)) == 1

    await until(begun)
    assert (await bench.state()).requested_at == 123.0


async def test_a_lease_that_an_earlier_leader_wrote_at_last_is_found_and_put_right(bench: Bench, monkeypatch):
    """It stood still, woke up and wrote once more before it ended: the one who leads now was refused nothing by that."""
    monkeypatch.setattr(service, "LEASES_SECONDS", 0.05)
    await bench.start()
    await bench.announce()
    await bench.request()

    async def rolls_out() -> bool:
        lease = await bench.lease("gpu")
        return lease is not None and lease.role is Role.ROLLOUT

    await until(rolls_out)
    stands = await bench.lease("gpu")
    assert stands is not None
    late = stands.model_copy(update={"epoch": stands.epoch + 1, "role": Role.IDLE, "trainer": False})
    await (await bench.bus.kv(LEASES_BUCKET)).put("gpu", pack_record(late))
    await until(rolls_out)
    right = await bench.lease("gpu")
    assert right is not None and (right.epoch, right.trainer) == (stands.epoch + 2, True)


async def test_a_leader_that_could_not_renew_its_key_writes_no_lease(bench: Bench, monkeypatch):
    """Another may lead already: it waits until it knows."""
    monkeypatch.setattr(Leadership, "is_certain", property(lambda leadership: False))
    await bench.start()
    await bench.announce()
    await bench.request()
    await asyncio.sleep(0.3)
    assert await bench.lease("gpu") is None

    monkeypatch.setattr(Leadership, "is_certain", property(lambda leadership: True))

    async def leased() -> bool:
        return await bench.lease("gpu") is not None

    await until(leased)


async def test_one_scheduler_leads_and_another_takes_over(bench: Bench):
    """The second waits, reports that, and leads once the first is gone; what is published meanwhile is not lost."""
    await bench.start("s1")
    await bench.announce()
    await bench.request()
    follower = await bench.start("s2")

    async def follows() -> bool:
        return "follows" in follower.presence.status.state

    await until(follows)
    await bench.kill()
    bench.live()
    await bench.submit()
    await bench.until_ended()
    await check_the_history(bench)
    assert follower.presence.status.state.startswith("leads")


async def test_a_leader_that_lost_its_key_to_another_ends_its_process(bench: Bench):
    """It must not go on deciding; its supervisor starts it again as a follower."""
    await bench.start("s1")

    async def leads() -> bool:
        entry = await (await bench.bus.kv("LEASES")).get("leader.scheduler")
        return entry is not None

    await until(leads)
    await (await bench.bus.kv("LEASES")).put("leader.scheduler", b"usurper")
    _, process, _ = bench.running[0]

    async def gone() -> bool:
        return process.done()

    await until(gone)
    assert "usurper leads now" in str(process.exception())
    bench.running.clear()


async def test_a_run_whose_journal_does_not_answer_keeps_no_leader_from_the_others(bench: Bench, monkeypatch):
    """Who takes over goes on with the others at once, and with it when its journal answers."""
    monkeypatch.setattr(service, "GO_ON_SECONDS", 0.02)
    await bench.start()
    await bench.announce()
    for run in ("away", "there"):
        await bench.request(run)
    await until(lambda: bench.has_journal("away"))
    await until(lambda: bench.has_journal("there"))
    await asyncio.sleep(0.1)
    await bench.kill()
    is_away, first = True, MemoryBus.first

    async def never_answers(bus: MemoryBus, stream: str, subject: str) -> Record | None:
        if is_away and stream == journal_stream("away"):
            raise Unavailable("this journal has no leader")
        return await first(bus, stream, subject)

    monkeypatch.setattr(MemoryBus, "first", never_answers)
    await bench.start("s2")
    await bench.journal.publish_all([*tasks("t", 1, run="away"), *tasks("t", 1, run="there")])

    async def is_opened(run: str) -> bool:
        return len(await bench.events(run, EpisodeOpened)) == 2

    await until(lambda: is_opened("there"))
    assert await bench.events("away", EpisodeOpened) == []
    is_away = False
    await until(lambda: is_opened("away"))
