"""The scheduler as a process over a bus: whole runs, and how they end, by themselves or because a person stops them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from random import Random

import pytest

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.contracts import (
    EpisodeOpened,
    EvaluationEnded,
    GroupAdmitted,
    Role,
    RoleAssigned,
    RunPhase,
    RunStopRequested,
    SamplesReady,
    Service,
    TrainerStarted,
    TrainingEndRequested,
)
from seamlessflow.contracts.routes import QUEUE_OF
from seamlessflow.contracts.streams import consumer_name, journal_stream, queue_stream
from seamlessflow.errors import Unavailable
from seamlessflow_scheduler import service as clearing
from seamlessflow_scheduler.service import Scheduler
from tests.services.scheduler.scheduler_bench import ROUNDS, Bench, until
from tests.services.scheduler.scheduler_history import check_the_history
from tests.services.scheduler.scheduler_world import RUN, Agents, config


async def test_a_run_goes_from_request_to_end(bench: Bench):
    """Both evaluation rounds, three steps with the device lent in between where no batch is about to be ready, and an orderly
    end that leaves the journal."""
    await bench.start()
    await bench.announce()
    await bench.request(**ROUNDS)
    bench.live(**ROUNDS)
    await bench.submit(train=40, held_out=3)

    ended = await bench.until_ended()
    assert (ended.reason, ended.steps) == ("completed", 3)
    assert [(e.round, e.num_episodes) for e in await bench.events(RUN, EvaluationEnded)] == [("before", 3), ("after", 3)]
    roles = [e.role for e in await bench.events(RUN, RoleAssigned) if e.node == "gpu"]
    assert roles[:2] == [Role.ROLLOUT, Role.TRAIN] and roles.count(Role.TRAIN) <= 3
    assert all(role is not next_role for role, next_role in pairwise(roles))
    await check_the_history(bench)

    async def cleaned_up() -> bool:
        names = await bench.bus.stream_names()
        lease, state = await bench.lease("gpu"), await bench.state()
        gone = not any(queue_stream(service, RUN) in names for service in QUEUE_OF)
        return gone and journal_stream(RUN) in names and lease.run is None and state.phase is RunPhase.ENDED

    await until(cleaned_up)


class Flaky:
    """Refuses the first calls of a method, as a server that is away does."""

    def __init__(self, method: Callable[..., Awaitable[None]], refusals: int) -> None:
        self.method, self.refusals = method, refusals

    async def __call__(self, *arguments: object, **options: object) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("the server is away")
        await self.method(*arguments, **options)


async def test_the_end_of_a_run_is_recorded_and_cleared_away_also_when_the_server_is_away_just_then(bench: Bench, monkeypatch):
    """RUNS holds ended although the first tries failed, and so are the queues deleted; nothing is forgotten meanwhile."""
    recorded, deleted = Flaky(Scheduler._record_end, 2), Flaky(MemoryBus.delete_stream, 2)
    monkeypatch.setattr(Scheduler, "_record_end", lambda self, *arguments: recorded(self, *arguments))
    monkeypatch.setattr(MemoryBus, "delete_stream", lambda self, name: deleted(self, name))
    monkeypatch.setattr(clearing, "RETRY_SECONDS", 0.02)
    await bench.start()
    await bench.announce()
    await bench.request()
    await bench.journal.publish(RunStopRequested(run=RUN))

    async def over() -> bool:
        names = await bench.bus.stream_names()
        return (await bench.state()).phase is RunPhase.ENDED and not any(queue_stream(each, RUN) in names for each in QUEUE_OF)

    await until(over)
    assert recorded.refusals == deleted.refusals == 0
    assert (await bench.state()).reason == "stopped"


async def test_a_run_whose_agents_all_fail_ends_by_itself(bench: Bench):
    """Nothing is trained, nothing is left open, and RUNS holds the reason."""
    await bench.start()
    await bench.announce()
    await bench.request()
    bench.live(failing=1.0)
    await bench.submit(train=40)

    ended = await bench.until_ended()
    assert ended.reason.startswith("stopped: the last 4 groups failed: g-t") and ended.steps == 0
    await check_the_history(bench)


@pytest.mark.parametrize("killed", [False, True])
async def test_a_stop_ends_in_order_also_when_the_scheduler_dies_with_it(bench: Bench, killed: bool):
    """What was trained is committed, what was in flight is dropped, and the round after is not held."""
    await bench.start()
    await bench.announce()
    await bench.request(**ROUNDS)
    bench.live(**ROUNDS)
    await bench.submit(train=40, held_out=2)

    async def training() -> bool:
        return bool(await bench.events(RUN, TrainerStarted)) and len(await bench.events(RUN, GroupAdmitted)) > 3

    await until(training)
    await bench.journal.publish(RunStopRequested(run=RUN))
    if killed:
        await bench.kill()
        await bench.start("s2")

    assert (await bench.until_ended()).reason == "stopped"
    assert [e.round for e in await bench.events(RUN, EvaluationEnded)] == ["before"]
    await check_the_history(bench)


async def test_the_rest_is_asked_for_only_when_all_its_samples_precede_the_request(bench: Bench):
    """The trainer's queue brings both in the journal's order, so its last, smaller step misses no group."""
    await bench.start()
    await bench.announce()
    await bench.request()
    await bench.submit(train=1)

    async def opened() -> bool:
        return len(await bench.events(RUN, EpisodeOpened)) == 2

    await until(opened)
    agents = Agents(config(), Random(1))
    for event in await bench.events(RUN, EpisodeOpened):
        agents.feed(event)
    while agents.running:
        due = [event for event in agents.due() if not isinstance(event, SamplesReady)]
        await bench.journal.publish_all(due)
        for event in due:
            agents.feed(event)

    async def all_heard() -> bool:
        queue = queue_stream(Service.SCHEDULER, RUN)
        return await bench.bus.pending(queue, consumer_name(Service.SCHEDULER)) == 0

    await until(all_heard)
    assert await bench.events(RUN, TrainingEndRequested) == []
    while due := agents.due():
        await bench.journal.publish_all(due)
        for event in due:
            agents.feed(event)

    async def asked() -> bool:
        return await bench.events(RUN, TrainingEndRequested) != []

    await until(asked)
    kinds = [type(event) for event in await bench.events()]
    assert kinds.count(SamplesReady) == 2 and SamplesReady not in kinds[kinds.index(TrainingEndRequested) :]
