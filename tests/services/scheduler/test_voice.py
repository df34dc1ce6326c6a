"""Openings are said in slices: events, ticks and leases get in between, and a death in the middle loses and repeats nothing."""

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
from seamlessflow_scheduler.admission.decisions import NOTHING, decide
from seamlessflow_scheduler.admission.run_state import Progress, group_id
from seamlessflow_scheduler.config import SchedulerSettings
from seamlessflow_scheduler.leases import LeaseBook
from seamlessflow_scheduler.paced_publisher import Turn, Voice
from seamlessflow_scheduler.run import SLICE, Conductor
from tests.services.scheduler.scheduler_bench import Bench, until
from tests.services.scheduler.scheduler_world import RUN, Journal, config, tasks

GROUPS, MEMBERS = 20, 10
MANY = {"algorithm": {"steps": 3, "groups_per_step": GROUPS, "group_size": MEMBERS, "max_staleness": 1}}
NUM_OPENINGS = 2 * GROUPS * MEMBERS
SECONDS_TO_SAY = 0.001


class SlowBus(MemoryBus):
    """A server that is some way off: each event takes a moment to be stored."""

    async def publish(self, message: Message) -> Stored:
        await asyncio.sleep(SECONDS_TO_SAY)
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


async def joined(context: Context, bench: Bench, num_long: int = 0) -> Conductor:
    """A conductor that has much to say, the openings of so many long groups among it, and may not say it yet."""
    fleet = {"fleet": {"long_tail": 1.5}} if num_long else {}
    conductor = Conductor(context, RUN, config(**MANY, **fleet), lambda: None)
    await conductor.make()
    waiting = tasks("t", 2 * GROUPS)
    await bench.journal.publish_all(waiting)
    for task in waiting[-num_long:] if num_long else ():
        admitted = GroupAdmitted(
            run=RUN, group=group_id(task.task), task=task.task, env=task.env, num_episodes=MEMBERS, step=0, long=True
        )
        await bench.journal.publish(admitted)
    await conductor.join()
    return conductor


async def conducted(context: Context, bench: Bench, num_long: int = 0) -> Conductor:
    """The same, when it may."""
    conductor = await joined(context, bench, num_long)
    conductor.tick(NOTHING, conductor.num_pauses)
    return conductor


async def num_opened(bench: Bench) -> int:
    return len(await bench.events(RUN, EpisodeOpened))


def at_least(bench: Bench, count: int) -> Callable[[], Any]:
    async def there() -> bool:
        return await num_opened(bench) >= count

    return there


async def test_an_event_is_taken_in_while_openings_are_said(bench: Bench, context: Context):
    """It waits for what is being said just then, not for hundreds of openings."""
    conductor = await conducted(context, bench)
    await until(at_least(bench, 5))
    await bench.journal.publish(TrainerStarted(run=RUN, line=1, step=0, weights_version=0))

    async def taken_in() -> bool:
        return conductor.progress.steps.line == 1

    before = await num_opened(bench)
    await until(taken_in)
    assert conductor.progress.owed and await num_opened(bench) - before < SLICE
    await conductor.leave()


async def test_a_tick_waits_for_nothing_that_is_said(bench: Bench, context: Context):
    """However much is due; and in the end all has been said, each once."""
    conductor = await conducted(context, bench)
    for _ in range(10):
        await asyncio.sleep(3 * SECONDS_TO_SAY)
        before = await num_opened(bench)
        conductor.tick(NOTHING, conductor.num_pauses)
        assert await num_opened(bench) - before <= 1
    await until(at_least(bench, NUM_OPENINGS))
    opened = [event.episode for event in await bench.events(RUN, EpisodeOpened)]
    assert len(opened) == len(set(opened)) == NUM_OPENINGS
    await conductor.leave()


async def test_what_may_change_roles_silences_until_leases_are_written(bench: Bench, context: Context):
    """A tick writes leases first and then lets the conductor go on."""
    conductor = await conducted(context, bench)
    await until(at_least(bench, 5))
    await bench.journal.publish(TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
    await bench.journal.publish(BatchReady(run=RUN, step=1, line=1, num_groups=GROUPS, num_tokens=1))

    async def heard() -> bool:
        return conductor.progress.wants_train

    await until(heard)
    silent = await num_opened(bench)
    await asyncio.sleep(20 * SECONDS_TO_SAY)
    assert await num_opened(bench) == silent < NUM_OPENINGS
    conductor.tick(NOTHING, conductor.num_pauses)
    await until(at_least(bench, NUM_OPENINGS))
    await conductor.leave()


@pytest.mark.parametrize("num_long", [0, 9])
async def test_the_picture_is_always_the_fold_of_the_journal(bench: Bench, context: Context, num_long: int):
    """In the middle of the openings, too."""
    conductor = await conducted(context, bench, num_long)
    for count in (1, 40, 150, NUM_OPENINGS):
        await until(at_least(bench, count))
        await bench.journal.publish(TrainerStarted(run=RUN, line=count, step=0, weights_version=0))

        async def silenced(line: int = count) -> bool:
            return conductor.progress.steps.line == line

        await until(silenced)
        folded = Progress(RUN, conductor.config)
        for event in await bench.events():
            folded.apply(event)
        for name in ("waiting", "owed", "owed_long", "open_training", "bucket_loads", "admitted", "num_unfinished"):
            assert getattr(folded, name) == getattr(conductor.progress, name), name
        conductor.tick(NOTHING, conductor.num_pauses)
    await conductor.leave()


async def test_an_opening_of_a_long_group_that_somebody_else_said_is_no_echo(bench: Bench, context: Context):
    """We owed it, and owe it no more."""
    conductor = await joined(context, bench, num_long=2 * GROUPS)
    owed = len(conductor.progress.owed_long)
    said = decide(conductor.progress)[0]
    assert isinstance(said, EpisodeOpened) and conductor.progress.owes(said.episode)
    await conductor._on_event(said)

    assert conductor.progress.open_training.keys() == {said.episode}
    assert not conductor.progress.owes(said.episode) and len(conductor.progress.owed_long) == owed - 1
    await conductor.leave()


async def test_a_refusal_in_the_middle_delays_the_rest_until_the_next_tick(bench: Bench, context: Context, monkeypatch):
    """Nothing is left out, and nothing is said twice."""
    refusals = [Unavailable("the server is away")] * 3

    async def publish(bus: MemoryBus, message: Message) -> Stored:
        if refusals and await num_opened(bench) >= 50:
            raise refusals.pop()
        return await MemoryBus.publish(bus, message)

    monkeypatch.setattr(SlowBus, "publish", publish)
    conductor = await conducted(context, bench)
    await until(at_least(bench, 50))
    assert await num_opened(bench) == 50
    for _ in range(3):
        await asyncio.sleep(0.01)
        conductor.tick(NOTHING, conductor.num_pauses)
    await until(at_least(bench, NUM_OPENINGS))
    assert not refusals and len({event.episode for event in await bench.events(RUN, EpisodeOpened)}) == NUM_OPENINGS
    await conductor.leave()


@pytest.mark.parametrize("said", [1, 33, 200, 380])
async def test_a_scheduler_killed_amid_openings_is_followed_by_one_that_says_the_rest(bench: Bench, monkeypatch, said: int):
    """Each episode is opened once, for the group that was admitted."""
    monkeypatch.setattr("scheduler_bench.MemoryBus", SlowBus)
    await bench.start()
    await bench.announce()
    await bench.request(**MANY)
    await bench.submit(train=2 * GROUPS)
    await until(bench.has_journal)
    await until(at_least(bench, said))
    await bench.kill()
    assert said <= await num_opened(bench) < NUM_OPENINGS
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
        await asyncio.sleep(100 * SECONDS_TO_SAY)
        await write(book, *arguments)

    monkeypatch.setattr(LeaseBook, "write", slowly)
    monkeypatch.setattr("scheduler_bench.MemoryBus", SlowBus)
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
    said = list[str]()

    async def publish() -> bool:
        said.append("opening")
        return False

    turn = Turn()
    voice = Voice(RUN, turn, publish, lambda: None)
    planned = voice.num_pauses
    async with turn:
        voice.pause()
    voice.go(planned)
    await asyncio.sleep(0.01)
    assert said == []
    voice.go(voice.num_pauses)
    await asyncio.sleep(0.01)
    assert said == ["opening"]
    await voice.end()


async def test_the_picture_of_a_run_that_is_left_goes_without_the_collector(bench: Bench, context: Context):
    """It was taken out of the collector's sight, and a bus may refer to who heard by it until it is closed."""
    conductor = await conducted(context, bench)
    await until(at_least(bench, NUM_OPENINGS))
    gone = weakref.ref(conductor.progress)
    gc.collect()
    gc.disable()
    try:
        await conductor.leave()
        assert gone() is None
    finally:
        gc.enable()
        gc.unfreeze()


async def test_a_mistake_of_ours_ends_the_tick_that_follows():
    """As it would without slices: a scheduler that cannot decide must not seem to work."""

    async def wrong() -> bool:
        raise AssertionError("a mistake")

    voice = Voice(RUN, Turn(), wrong, lambda: None)
    voice.go(voice.num_pauses)
    await asyncio.sleep(0.01)
    with pytest.raises(AssertionError, match="a mistake"):
        voice.go(voice.num_pauses)


async def test_a_turn_goes_to_who_waits_longest_and_says_that_somebody_does():
    """Who gives it back and wants it again at once comes last."""
    turn, order = Turn(), list[str]()

    async def take(name: str) -> None:
        async with turn:
            order.append(name)

    async with turn:
        assert not turn.is_wanted
        others = [asyncio.create_task(take(name)) for name in "ab"]
        await asyncio.sleep(0)
        assert turn.is_wanted
    await take("again")
    await asyncio.gather(*others)
    assert order == ["a", "b", "again"] and not turn.is_wanted


@given(st.integers(1, 7), st.integers(0, 6), st.integers(0, 3), st.integers(1, 4))
def test_slices_come_to_the_same_as_everything_at_once(most: int, train: int, held_out: int, buckets: int):
    """Whatever the size of a slice: the same events, groups in the same buckets."""
    sections = {"evaluation": {"before": True, "after": True}, "fleet": {"buckets": buckets}}
    found = []
    for size in (None, most):
        progress, journal = Progress(RUN, config(**sections)), Journal()
        for event in (*tasks("e", held_out, evaluation="before"), *tasks("t", train)):
            progress.apply(event)
        while due := decide(progress, NOTHING, size):
            assert size is None or len(due) <= size
            for event in due:
                assert journal.publish(event)
                progress.apply(event)
        found.append({message_id_of(event): event for event in journal.events})
    assert found[0] == found[1]
