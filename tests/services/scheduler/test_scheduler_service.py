"""The scheduler as a process over a bus: whole runs, deaths at any point, bad input, stops, shared fleets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from scheduler_bench import MACHINE, TRAINER, Bench, until
from scheduler_world import RUN, Agents, config, document, task, tasks

from seamlessflow.bus.base import Message, Stored
from seamlessflow.bus.memory import MemoryBus
from seamlessflow.codec import pack_record
from seamlessflow.contracts import (
    BatchReady,
    DeadLetter,
    EpisodeOpened,
    EvaluationEnded,
    GroupAdmitted,
    GroupDropped,
    Role,
    RoleAssigned,
    RunPhase,
    RunRequested,
    RunStarted,
    RunState,
    RunStopRequested,
    SamplesReady,
    Service,
    StepTaken,
    TrainerStarted,
    TrainingEndRequested,
)
from seamlessflow.contracts.addresses import subject_filter
from seamlessflow.contracts.routes import CONTROL_STREAM, LEASES_BUCKET, QUEUE_OF, RUNS_BUCKET
from seamlessflow.contracts.streams import consumer_name, journal, queue_stream
from seamlessflow.errors import Unavailable
from seamlessflow.ledger import Ledger
from services.scheduler import clearing, service
from services.scheduler.leadership import Leadership
from services.scheduler.service import Scheduler

ROUNDS = {"evaluation": {"before": True, "after": True}}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    await made.close()


async def check_the_history(bench: Bench, run: str = RUN) -> None:
    """What must be true of every run that ended in order, however it came there."""
    events = await bench.events(run)
    ledger = Ledger.of(events)
    assert ledger.balanced and not ledger.gaps, ledger
    assert ledger.episodes.in_flight == ledger.tokens.in_flight == 0
    assert isinstance(events[0], RunStarted)
    epochs: dict[str, int] = {}
    for event in events:
        if isinstance(event, RoleAssigned):
            assert event.epoch > epochs.get(event.node, 0)
            epochs[event.node] = event.epoch
    admitted = dropped = step = 0
    for event in events:
        admitted += isinstance(event, GroupAdmitted) and event.evaluation is None
        dropped += isinstance(event, GroupDropped)
        step = max(step, event.step) if isinstance(event, StepTaken) else step
        assert admitted - dropped <= (step + 1 + 1) * 2  # max_staleness 1, groups_per_step 2


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
        return gone and journal(RUN) in names and lease.run is None and state.phase is RunPhase.ENDED

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
    """RUNS says ended although the first tries failed, and so are the queues deleted; nothing is forgotten meanwhile."""
    recorded, deleted = Flaky(Scheduler._record_end, 2), Flaky(MemoryBus.delete_stream, 2)
    monkeypatch.setattr(Scheduler, "_record_end", lambda self, *arguments: recorded(self, *arguments))
    monkeypatch.setattr(MemoryBus, "delete_stream", lambda self, name: deleted(self, name))
    monkeypatch.setattr(clearing, "RETRY_SECONDS", 0.02)
    await bench.start()
    await bench.announce()
    await bench.request()
    await bench.speaker.say(RunStopRequested(run=RUN))

    async def over() -> bool:
        names = await bench.bus.stream_names()
        return (await bench.state()).phase is RunPhase.ENDED and not any(queue_stream(each, RUN) in names for each in QUEUE_OF)

    await until(over)
    assert recorded.refusals == deleted.refusals == 0
    assert (await bench.state()).reason == "stopped"


async def test_a_run_whose_agents_all_fail_ends_by_itself(bench: Bench):
    """Nothing is trained, nothing is left open, and RUNS says why."""
    await bench.start()
    await bench.announce()
    await bench.request()
    bench.live(failing=1.0)
    await bench.submit(train=40)

    ended = await bench.until_ended()
    assert ended.reason.startswith("stopped: the last 4 groups failed: g-t") and ended.steps == 0
    await check_the_history(bench)


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


async def test_tasks_nobody_can_do_and_bytes_that_are_no_task_are_dead_letters(bench: Bench):
    """Both are kept with their reason, and the run goes on."""
    await bench.start()
    await bench.announce()
    await bench.request()
    bench.live()
    await bench.speaker.say(task("x", env="nobody"))
    await bench.bus.publish(Message(f"sf.{RUN}.task.single.y", b'{"prompt": 3}', "raw-1"))
    await bench.submit(train=8)

    await bench.until_ended()
    reasons = sorted(letter.reason for letter in await bench.events(RUN, DeadLetter))
    assert len(reasons) == 2
    assert "not a TaskSubmitted" in reasons[0] and "no agent of run r1 has env 'nobody'" in reasons[1]


async def test_a_document_that_cannot_be_used_is_refused_where_the_requester_looks(bench: Bench):
    """RUNS says refused with the words of the configuration error; CTL keeps the dead letter; no journal is made."""
    await bench.start()
    await bench.speaker.say(RunRequested(run=RUN, document={**document(), "algorithm": {"stepz": 3}}))

    async def refused() -> bool:
        state = await bench.state()
        return state is not None and state.phase is RunPhase.REFUSED

    await until(refused)
    assert "stepz" in (await bench.state()).reason

    async def buried() -> bool:
        return await bench.bus.last(CONTROL_STREAM, "sf.ctl.dead.>") is not None

    await until(buried)
    assert not await bench.has_journal()


async def test_a_run_with_a_policy_that_cannot_be_had_is_refused(bench: Bench):
    """When it is requested, not when its first batch is ready."""
    await bench.start()
    await bench.speaker.say(RunRequested(run=RUN, document=document(fleet={"policy": "nowhere:at_all"})))

    async def refused() -> bool:
        state = await bench.state()
        return state is not None and state.phase is RunPhase.REFUSED

    await until(refused)
    assert "cannot import nowhere" in (await bench.state()).reason


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


async def test_a_stop_of_a_run_nobody_requested_is_a_dead_letter(bench: Bench):
    """There is nothing to stop, and whoever asked can find out."""
    await bench.start()
    await bench.speaker.say(RunStopRequested(run="nobody"))

    async def buried() -> bool:
        record = await bench.bus.last(CONTROL_STREAM, "sf.ctl.dead.>")
        return record is not None and "never requested" in (await bench.speaker.open(record)).reason

    await until(buried)


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
    await bench.speaker.say(RunStopRequested(run=RUN))
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
        await bench.speaker.say_all(due)
        for event in due:
            agents.feed(event)

    async def all_heard() -> bool:
        queue = queue_stream(Service.SCHEDULER, RUN)
        return await bench.bus.pending(queue, consumer_name(Service.SCHEDULER)) == 0

    await until(all_heard)
    assert await bench.events(RUN, TrainingEndRequested) == []
    while due := agents.due():
        await bench.speaker.say_all(due)
        for event in due:
            agents.feed(event)

    async def asked() -> bool:
        return await bench.events(RUN, TrainingEndRequested) != []

    await until(asked)
    kinds = [type(event) for event in await bench.events()]
    assert kinds.count(SamplesReady) == 2 and SamplesReady not in kinds[kinds.index(TrainingEndRequested) :]


async def test_two_runs_share_one_machine_one_after_the_other(bench: Bench):
    """The second says whose nodes it waits for, then gets them with higher epochs."""
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
    """A batch waits and nobody can train on it: the worker rolls out meanwhile; the trainer comes back to its place."""
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
    await bench.speaker.say(TrainerStarted(run=RUN, line=9, step=0, weights_version=99))
    await bench.speaker.say(BatchReady(run=RUN, step=1, line=9, num_groups=2, num_tokens=1))
    await until(lambda: role_is(Role.TRAIN))
    await bench.vanish("gpu", TRAINER)
    await until(lambda: role_is(Role.ROLLOUT))
    assert (await bench.lease("gpu")).trainer
    await bench.announce()
    await until(lambda: role_is(Role.TRAIN))


async def test_one_scheduler_leads_and_another_takes_over(bench: Bench):
    """The second waits, saying so, and leads once the first is gone; what is published meanwhile is not lost."""
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


@pytest.mark.parametrize("how", ["refuses", "hangs"])
async def test_a_run_whose_journal_does_not_answer_delays_no_other_run(bench: Bench, monkeypatch, how: str):
    """Neither a question to it nor an event that is being said into it."""
    ask, publish = MemoryBus.stream_bytes, MemoryBus.publish

    async def stream_bytes(bus: MemoryBus, stream: str) -> int:
        if how == "refuses" and stream == journal("away"):
            raise Unavailable("this journal has no leader")
        return await ask(bus, stream)

    async def never_stored(bus: MemoryBus, message: Message) -> Stored:
        if how == "hangs" and message.subject.startswith(subject_filter(GroupAdmitted, run="away").partition("*")[0]):
            await asyncio.Event().wait()
        return await publish(bus, message)

    monkeypatch.setattr(service, "CONDUCT_SECONDS", 0.2)
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
        await bench.speaker.say_all(tasks("t", 4, run=run))

    async def is_opened() -> bool:
        return len(await bench.events("there", EpisodeOpened)) == 8

    await until(is_opened)
    assert await bench.events("away", EpisodeOpened) == []
