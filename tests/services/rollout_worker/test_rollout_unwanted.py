"""Who reads along, and who has gone: text flows early for the first, and nothing more is sampled for the second."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.contracts import Float32s, GenerationClaimed, GenerationFinish, GenerationRequested, Int32s, SegmentSampled
from seamlessflow_rollout_worker.generations.abandonment import Interest, Interests
from seamlessflow_rollout_worker.generations.generation_state import Pace
from tests.services.rollout_worker.rollout_world import RUN, World

NEVER = Pace(many=1000, few=1000, longest_seconds=1000.0)


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Abandoned calls are looked for all the time."""
    monkeypatch.setattr("seamlessflow_rollout_worker.worker_monitor.PROGRESS_SECONDS", 0.02)
    monkeypatch.setattr("seamlessflow_rollout_worker.generations.abandonment.FRESH_SECONDS", 0.0)


async def ends(world: World) -> list[tuple[GenerationFinish, int]]:
    return [(end.finish, end.num_tokens) for end in await world.ended()]


async def test_tokens_that_somebody_reads_along_with_are_said_early(world: World):
    """Each as it comes; without a reader they wait for the pace that the worker has."""
    world.pace = NEVER
    worker = await world.ready()
    await world.ask("c1", stream=True)
    await world.ask("c2", episode="t-1-0")
    await world.until(lambda: len(worker.engine.requests) == 2)

    for count in (1, 2, 3):
        worker.engine.step()
        await world.until_tokens(count, "c1")

    assert await world.tokens("c2") == []
    worker.engine.step(5)
    await world.until_acked()
    assert await world.tokens("c1") == await world.tokens("c2") == [1003 + n for n in range(8)]


@pytest.mark.usefixtures("watchful")
async def test_sampling_stops_when_the_call_is_abandoned(world: World):
    """What was sampled is said and kept; others go on."""
    world.pace = NEVER
    worker = await world.ready()
    await world.ask("c1")
    await world.ask("c2")
    await world.until(lambda: len(worker.engine.requests) == 2)
    worker.engine.step(3)

    await world.abandon("c1")
    await world.until_ended()

    assert await ends(world) == [(GenerationFinish.CANCELLED, 3)]
    assert await world.tokens("c1") == [1003, 1004, 1005]
    worker.engine.step(5)
    await world.until_acked()
    assert await world.tokens("c2") == [1003 + n for n in range(8)]


@pytest.mark.usefixtures("watchful")
async def test_a_frozen_generation_ends_when_its_call_is_abandoned(world: World):
    """It need not wait for the device to come back."""
    worker = await world.ready()
    await world.ask()
    await world.until(lambda: worker.engine.requests)
    worker.engine.step(2)
    await world.lease("train")
    await world.until(lambda: worker.engine.is_paused)

    await world.abandon()
    await world.until_acked()

    assert await ends(world) == [(GenerationFinish.CANCELLED, 2)]


@pytest.mark.parametrize(
    "wants",
    [{}, {"min_weights_version": 9}, {"parent": "c0", "parent_tokens": 5}],
    ids=["at once", "newer weights", "a parent"],
)
async def test_an_abandoned_call_that_is_delivered_is_ended_without_sampling(world: World, wants: dict):
    """Whatever it would have to wait for otherwise."""
    await world.open_run()
    await world.publish_model()
    await world.publish_weights(0)
    await world.ask(**wants)
    await world.abandon()

    worker = world.worker(by_itself=True)
    await world.lease()
    await world.until_acked()

    assert await ends(world) == [(GenerationFinish.CANCELLED, 0)] and worker.engine.budgets == []
    assert len(await world.said(GenerationClaimed)) == 1


async def test_an_abandoned_call_keeps_the_tokens_of_a_dead_worker(world: World):
    """The end counts them: they are in the journal and in the ledger."""
    await world.open_run()
    await world.publish_model()
    await world.publish_weights(0)
    await world.ask()
    same = {"run": RUN, "episode": "t-0-0", "generation": "c1", "shard": 0, "nonce": "old"}
    await world.publish(GenerationClaimed(**same, worker="gone", start=0))
    tokens = {"token_ids": Int32s([7, 8]), "logprobs": Float32s([-1.0, -1.0]), "weights_version": 0}
    await world.publish(SegmentSampled(**same, start=0, **tokens))
    await world.abandon()

    world.worker(by_itself=True)
    await world.lease()
    await world.until_acked()

    assert await ends(world) == [(GenerationFinish.CANCELLED, 2)] and await world.tokens() == [7, 8]


async def test_an_ended_episode_counts_more_than_an_abandoned_call(world: World):
    """Nobody waits for the end of its generations either."""
    await world.ready(by_itself=True)
    await world.abandon()
    await world.end_episode()

    await world.ask()
    await world.until_acked()

    assert await world.said(GenerationClaimed) == []


class CountingBus(MemoryBus):
    """Counts what is looked up."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.looks: Counter[str] = Counter()

    async def first(self, stream, subject):
        self.looks["of one" if ".abandoned." in subject else "of its episode"] += 1
        return await super().first(stream, subject)

    async def last(self, stream, subject):
        self.looks["of all"] += 1
        return await super().last(stream, subject)


async def asked(world: World, count: int) -> list[GenerationRequested]:
    return [await world.ask(f"c{number}") for number in range(count)]


async def test_many_generations_look_once_for_all_abandoned_calls(world: World):
    """Each asks for its own only when there is a new one, and once."""
    await world.open_run()
    bus = CountingBus(world.server)
    interests = Interests(bus, world.worker().context.journal)
    interests._journal._bus = bus
    requests = await asked(world, 20)

    first = [await interests.look(request) for request in requests]
    assert bus.looks == {"of all": 1, "of its episode": 20} and set(first) == {Interest()}

    await world.abandon("c7")
    interests._looked_at = -1.0
    second = [await interests.look(request, before) for request, before in zip(requests, first, strict=True)]
    assert bus.looks == {"of all": 2, "of its episode": 40, "of one": 20}
    assert [number for number, each in enumerate(second) if each.is_abandoned] == [7]

    third = [await interests.look(request, before) for request, before in zip(requests, second, strict=True)]
    assert third == second and bus.looks == {"of all": 2, "of its episode": 60, "of one": 20}


class SlowBus(MemoryBus):
    """Counts round trips that cannot go side by side."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.num_trips = self.num_now = 0

    async def first(self, stream, subject):
        self.num_trips += self.num_now == 0
        self.num_now += 1
        for _ in range(5):
            await asyncio.sleep(0)
        self.num_now -= 1
        return await super().first(stream, subject)


async def test_an_abandoned_call_costs_later_generations_no_further_round_trip(world: World):
    """Each asks for its own call beside its episode."""
    await world.open_run()
    early, late = await asked(world, 2)
    await world.abandon("c0")
    bus = SlowBus(world.server)
    interests = Interests(bus, world.worker().context.journal)
    interests._journal._bus = bus
    assert (await interests.look(early)).is_abandoned

    bus.num_trips = 0
    for _ in range(3):
        assert not (await interests.look(late)).is_abandoned

    assert bus.num_trips == 3


async def test_what_is_abandoned_between_two_looks_is_found_by_the_next(world: World):
    """Also by a generation that began in between, whose first look saw what all had seen before."""
    await world.open_run()
    interests = Interests(world.bus, world.worker().context.journal)
    early, late = await asked(world, 2)
    looked = await interests.look(early)
    await world.abandon("c1")
    late_looked = await interests.look(late)

    interests._looked_at = -1.0

    assert not (await interests.look(early, looked)).is_abandoned
    assert (await interests.look(late, late_looked)).is_abandoned
