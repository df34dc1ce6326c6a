"""Openings are published in slices: events, ticks and leases get in between; a death in between loses and repeats nothing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.bus.base import Message, Stored
from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.contracts import (
    BatchReady,
    EpisodeOpened,
    GroupAdmitted,
    Role,
    RoleAssigned,
    Service,
    StepTaken,
    TrainerStarted,
)
from seamlessflow.contracts.streams import control_streams
from seamlessflow.contracts.subjects import message_id_of
from seamlessflow.errors import Unavailable
from seamlessflow.runtime import Context, make_context
from seamlessflow_scheduler.admission.decisions import NOTHING, next_events
from seamlessflow_scheduler.admission.open_group import group_id
from seamlessflow_scheduler.admission.run_state import RunProgress
from seamlessflow_scheduler.config import SchedulerSettings
from seamlessflow_scheduler.leases import LeaseBook
from seamlessflow_scheduler.paced_publisher import FairLock, PacedPublisher
from seamlessflow_scheduler.run import SLICE, ScheduledRun
from tests.services.scheduler.scheduler_bench import Bench, until
from tests.services.scheduler.scheduler_world import RUN, Journal, config, tasks

GROUPS, MEMBERS = 20, 10
MANY = {"algorithm": {"steps": 3, "groups_per_step": GROUPS, "group_size": MEMBERS, "max_staleness": 1}}
NUM_OPENINGS = 2 * GROUPS * MEMBERS
SECONDS_TO_PUBLISH = 0.001


class SlowBus(MemoryBus):
    """A server that is some way off: each event takes a moment to be stored."""

    async def publish(self, message: Message) -> Stored:
        await asyncio.sleep(SECONDS_TO_PUBLISH)
        return await super().publish(message)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    for stream in control_streams():
        await made.bus.ensure_stream(stream)
    yield made
    await made.close()


@pytest.fixture
async def context(bench: Bench) -> AsyncIterator[Context]:
    settings = SchedulerSettings(store_url=bench.store_url, node="s1", instance="s1")
    bus = SlowBus(bench.server)
    yield make_context(Service.SCHEDULER, settings, bus, capabilities=("schedule",))
    await bus.close()


async def joined(context: Context, bench: Bench, num_long: int = 0) -> ScheduledRun:
    """A run with many due events, the openings of so many long groups among them, that may not publish yet."""
    fleet = {"fleet": {"long_tail": 1.5}} if num_long else {}
    scheduled_run = ScheduledRun(context, RUN, config(**MANY, **fleet), lambda: None)
    await scheduled_run.make()
    waiting = tasks("t", 2 * GROUPS)
    await bench.journal.publish_all(waiting)
    for task in waiting[-num_long:] if num_long else ():
        admitted = GroupAdmitted(
            run=RUN, group=group_id(task.task), task=task.task, env=task.env, num_episodes=MEMBERS, step=0, long=True
        )
        await bench.journal.publish(admitted)
    await scheduled_run.join()
    return scheduled_run


async def conducted(context: Context, bench: Bench, num_long: int = 0) -> ScheduledRun:
    """The same, when it may."""
    scheduled_run = await joined(context, bench, num_long)
    scheduled_run.tick(NOTHING, scheduled_run.num_pauses)
    return scheduled_run


async def num_opened(bench: Bench) -> int:
    return len(await bench.events(RUN, EpisodeOpened))


def at_least(bench: Bench, count: int) -> Callable[[], Any]:
    async def there() -> bool:
        return await num_opened(bench) >= count

    return there


async def test_an_event_is_applied_while_openings_are_published(bench: Bench, context: Context):
    """It waits for the event being published just then, not for hundreds of openings."""
    scheduled_run = await conducted(context, bench)
    await until(at_least(bench, 5))
    await bench.journal.publish(TrainerStarted(run=RUN, line=1, step=0, weights_version=0))

    async def taken_in() -> bool:
        return scheduled_run.progress.steps.line == 1

    before = await num_opened(bench)
    await until(taken_in)
    assert scheduled_run.progress.owed and await num_opened(bench) - before < SLICE
    await scheduled_run.leave()


async def test_a_tick_does_not_wait_for_publishing(bench: Bench, context: Context):
    """However much is due; and in the end all is published, each once."""
    scheduled_run = await conducted(context, bench)
    for _ in range(10):
        await asyncio.sleep(3 * SECONDS_TO_PUBLISH)
        before = await num_opened(bench)
        scheduled_run.tick(NOTHING, scheduled_run.num_pauses)
        assert await num_opened(bench) - before <= 1
    await until(at_least(bench, NUM_OPENINGS))
    opened = [event.episode for event in await bench.events(RUN, EpisodeOpened)]
    assert len(opened) == len(set(opened)) == NUM_OPENINGS
    await scheduled_run.leave()


async def test_what_may_change_roles_silences_until_leases_are_written(bench: Bench, context: Context):
    """A tick writes leases first and then lets the run go on."""
    scheduled_run = await conducted(context, bench)
    await until(at_least(bench, 5))
    await bench.journal.publish(TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
    await bench.journal.publish(BatchReady(run=RUN, step=1, line=1, num_groups=GROUPS, num_tokens=1))

    async def heard() -> bool:
        return scheduled_run.progress.wants_train

    await until(heard)
    silent = await num_opened(bench)
    await asyncio.sleep(20 * SECONDS_TO_PUBLISH)
    assert await num_opened(bench) == silent < NUM_OPENINGS
    scheduled_run.tick(NOTHING, scheduled_run.num_pauses)
    await until(at_least(bench, NUM_OPENINGS))
    await scheduled_run.leave()


@pytest.mark.parametrize("num_long", [0, 9])
async def test_the_picture_is_always_the_fold_of_the_journal(bench: Bench, context: Context, num_long: int):
    """In the middle of the openings, too."""
    scheduled_run = await conducted(context, bench, num_long)
    for count in (1, 40, 150, NUM_OPENINGS):
        await until(at_least(bench, count))
        await bench.journal.publish(TrainerStarted(run=RUN, line=count, step=0, weights_version=0))

        async def silenced(line: int = count) -> bool:
            return scheduled_run.progress.steps.line == line

        await until(silenced)
        folded = RunProgress(RUN, scheduled_run.config)
        for event in await bench.events():
            folded.apply(event)
        for name in ("waiting", "owed", "owed_long", "open_training", "bucket_loads", "admitted", "num_unfinished"):
            assert getattr(folded, name) == getattr(scheduled_run.progress, name), name
        scheduled_run.tick(NOTHING, scheduled_run.num_pauses)
    await scheduled_run.leave()


async def test_an_opening_of_a_long_group_that_somebody_else_said_is_no_echo(bench: Bench, context: Context):
    """We owed it, and owe it no more."""
    scheduled_run = await joined(context, bench, num_long=2 * GROUPS)
    owed = len(scheduled_run.progress.owed_long)
    published = next_events(scheduled_run.progress)[0]
    assert isinstance(published, EpisodeOpened) and scheduled_run.progress.owes(published.episode)
    await scheduled_run._on_event(published)

    assert scheduled_run.progress.open_training.keys() == {published.episode}
    assert not scheduled_run.progress.owes(published.episode) and len(scheduled_run.progress.owed_long) == owed - 1
    await scheduled_run.leave()


async def test_a_refusal_in_the_middle_delays_the_rest_until_the_next_tick(bench: Bench, context: Context, monkeypatch):
    """Nothing is left out, and nothing is published twice."""
    refusals = [Unavailable("the server is away")] * 3

    async def publish(bus: MemoryBus, message: Message) -> Stored:
        if refusals and await num_opened(bench) >= 50:
            raise refusals.pop()
        return await MemoryBus.publish(bus, message)

    monkeypatch.setattr(SlowBus, "publish", publish)
    scheduled_run = await conducted(context, bench)
    await until(at_least(bench, 50))
    assert await num_opened(bench) == 50
    for _ in range(3):
        await asyncio.sleep(0.01)
        scheduled_run.tick(NOTHING, scheduled_run.num_pauses)
    await until(at_least(bench, NUM_OPENINGS))
    assert not refusals and len({event.episode for event in await bench.events(RUN, EpisodeOpened)}) == NUM_OPENINGS
    await scheduled_run.leave()


@pytest.mark.parametrize("published", [1, 33, 200, 380])
async def test_a_scheduler_killed_amid_openings_is_followed_by_one_that_publishes_the_rest(
    bench: Bench, monkeypatch, published: int
):
    """Each episode is opened once, for the group that was admitted."""
    monkeypatch.setattr("tests.services.scheduler.scheduler_bench.MemoryBus", SlowBus)
    await bench.start()
    await bench.announce()
    await bench.request(**MANY)
    await bench.submit(train=2 * GROUPS)
    await until(bench.has_journal)
    await until(at_least(bench, published))
    await bench.kill()
    assert published <= await num_opened(bench) < NUM_OPENINGS
    await bench.start("s2")

    await until(at_least(bench, NUM_OPENINGS))
    opened = [event.episode for event in await bench.events(RUN, EpisodeOpened)]
    admitted = [event.group for event in await bench.events(RUN, GroupAdmitted)]
    assert sorted(opened) == sorted(f"{group}-{index}-0" for group in set(admitted) for index in range(MEMBERS))
    assert len(admitted) == len(set(admitted)) == 2 * GROUPS


async def test_a_step_taken_changes_leases_before_it_opens_episodes(bench: Bench, monkeypatch):
    """A device that waits costs more than an episode that is not open yet; also where a lease takes its time."""
    write = LeaseBook.write

    async def slowly(book: LeaseBook, *arguments: Any) -> None:
        await asyncio.sleep(100 * SECONDS_TO_PUBLISH)
        await write(book, *arguments)

    monkeypatch.setattr(LeaseBook, "write", slowly)
    monkeypatch.setattr("tests.services.scheduler.scheduler_bench.MemoryBus", SlowBus)
    await bench.start()
    await bench.announce()
    await bench.request(**MANY)
    await bench.submit(train=4 * GROUPS)
    await until(bench.has_journal)
    await until(at_least(bench, NUM_OPENINGS))
    await bench.journal.publish(TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
    await bench.journal.publish(BatchReady(run=RUN, step=1, line=1, num_groups=GROUPS, num_tokens=1))

    async def trains() -> bool:
        lease = await bench.lease("gpu")
        return lease is not None and lease.role is Role.TRAIN

    await until(trains)
    await bench.journal.publish(StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=(), metrics={}))
    await until(at_least(bench, NUM_OPENINGS + GROUPS * MEMBERS))
    events = await bench.events()
    after = events[next(n for n, event in enumerate(events) if isinstance(event, StepTaken)) :]
    follow = [type(event) for event in after if isinstance(event, RoleAssigned | EpisodeOpened)]
    assert follow[0] is RoleAssigned and follow.count(EpisodeOpened) == GROUPS * MEMBERS


async def test_a_step_taken_while_leases_are_written_waits_for_those_that_follow_from_it():
    """The plan whose leases are being written did not know of it."""
    published = list[str]()

    async def publish() -> bool:
        published.append("opening")
        return False

    lock = FairLock()
    publisher = PacedPublisher(RUN, lock, publish, lambda: None)
    planned = publisher.num_pauses
    async with lock:
        publisher.pause()
    publisher.resume(planned)
    await asyncio.sleep(0.01)
    assert published == []
    publisher.resume(publisher.num_pauses)
    await asyncio.sleep(0.01)
    assert published == ["opening"]
    await publisher.end()


async def test_the_picture_of_a_run_that_is_left_goes_without_the_collector(bench: Bench, context: Context):
    """It was taken out of the collector's sight, and a bus may refer to who heard by it until it is closed."""
    scheduled_run = await conducted(context, bench)
    await until(at_least(bench, NUM_OPENINGS))
    gone = weakref.ref(scheduled_run.progress)
    gc.collect()
    gc.disable()
    try:
        await scheduled_run.leave()
        assert gone() is None
    finally:
        gc.enable()
        gc.unfreeze()


async def test_a_mistake_of_ours_ends_the_tick_that_follows():
    """As it would without slices: a scheduler that cannot decide must not seem to work."""

    async def wrong() -> bool:
        raise AssertionError("a mistake")

    publisher = PacedPublisher(RUN, FairLock(), wrong, lambda: None)
    publisher.resume(publisher.num_pauses)
    await asyncio.sleep(0.01)
    with pytest.raises(AssertionError, match="a mistake"):
        publisher.resume(publisher.num_pauses)


async def test_a_turn_goes_to_who_waits_longest_and_says_that_somebody_does():
    """Who gives it back and wants it again at once comes last."""
    lock, order = FairLock(), list[str]()

    async def take(name: str) -> None:
        async with lock:
            order.append(name)

    async with lock:
        assert not lock.has_waiters
        others = [asyncio.create_task(take(name)) for name in "ab"]
        await asyncio.sleep(0)
        assert lock.has_waiters
    await take("again")
    await asyncio.gather(*others)
    assert order == ["a", "b", "again"] and not lock.has_waiters


@given(st.integers(1, 7), st.integers(0, 6), st.integers(0, 3), st.integers(1, 4))
def test_slices_come_to_the_same_as_everything_at_once(most: int, train: int, held_out: int, buckets: int):
    """Whatever the size of a slice: the same events, groups in the same buckets."""
    sections = {"evaluation": {"before": True, "after": True}, "fleet": {"buckets": buckets}}
    found = []
    for size in (None, most):
        progress, journal = RunProgress(RUN, config(**sections)), Journal()
        for event in (*tasks("e", held_out, evaluation="before"), *tasks("t", train)):
            progress.apply(event)
        while due := next_events(progress, NOTHING, size):
            assert size is None or len(due) <= size
            for event in due:
                assert journal.publish(event)
                progress.apply(event)
        found.append({message_id_of(event): event for event in journal.events})
    assert found[0] == found[1]
