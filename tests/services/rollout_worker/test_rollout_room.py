"""New episodes go to workers that have room for their contexts, and their next calls to whoever took them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import Event, Lease, Role, SegmentSampled, claim_of
from seamlessflow.contracts.streams import all_buckets, generation_consumer, unowned_bucket
from seamlessflow_rollout_worker.generations.abandonment import Interests
from seamlessflow_rollout_worker.generations.pulls import (
    LENT_PRIORITY,
    OWNER_PRIORITY,
    common_parts,
    owned_buckets,
    parts_of,
    with_room,
)
from tests.services.rollout_worker.rollout_world import Worker, World

TAGS = ("prefill+rollout", "rollout")
NOBODYS = 2
"""With two buckets."""


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seamlessflow_rollout_worker.worker_monitor.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("seamlessflow_rollout_worker.generations.context_budget.LOOK_SECONDS", 0.02)


async def start(world: World, *nodes: str, cache_tokens: int | None = None, **engine: Any) -> list[Worker]:
    """Workers that own one of two buckets each. cache_tokens: of their engines; None: they do not tell."""
    await world.open_run(fleet={"slots": 4, "buckets": 2})
    await world.publish_model()
    await world.publish_weights(0)
    workers = []
    for number, node in enumerate(nodes):
        worker = world.worker(node, **engine)
        worker.engine.cache_tokens = cache_tokens  # type: ignore[attr-defined]
        workers.append(worker)
        await world.lease(node=node, buckets=(2 + number,))
    for worker in workers:
        await _until_started(world, worker)
    return workers


async def _until_started(world: World, worker: Worker) -> None:
    await world.until(lambda: "start" in worker.engine.calls)


async def last_segment(world: World, generation: str) -> SegmentSampled:
    async def found() -> bool:
        return any(each.generation == generation and each.finish for each in await world.said(SegmentSampled))

    await world.until(found)
    return next(each for each in await world.said(SegmentSampled) if each.generation == generation and each.finish)


async def test_who_takes_the_first_call_of_an_episode_says_where_the_next_ones_find_it(world: World) -> None:
    """In a bucket of its own; what is there already needs no word."""
    await start(world, "n1", "n2", by_itself=True)
    for number in range(6):
        await world.ask(f"c{number}", episode=f"e{number}", bucket=NOBODYS)
    firsts = [await last_segment(world, f"c{number}") for number in range(6)]
    workers = [(await _claimer(world, f"c{number}")) for number in range(6)]

    assert {(worker, first.bucket) for worker, first in zip(workers, firsts, strict=True)} <= {("i-n1", 0), ("i-n2", 1)}
    for number, first in enumerate(firsts):
        await world.ask(f"d{number}", episode=f"e{number}", bucket=first.bucket)
    seconds = [await last_segment(world, f"d{number}") for number in range(6)]
    assert [await _claimer(world, f"d{number}") for number in range(6)] == workers
    assert [each.bucket for each in seconds] == [None] * 6


async def test_a_worker_without_room_takes_no_new_episode_but_every_call_of_those_it_has(world: World) -> None:
    """Until one of them ends: then there is room for the one that waits."""
    (worker,) = await start(world, "n1", cache_tokens=60)
    await world.ask("c1", episode="e1", bucket=NOBODYS)
    await world.until(lambda: len(worker.engine.requests) == 1)
    await world.ask("c2", episode="e2", bucket=NOBODYS)
    await asyncio.sleep(0.1)
    assert len(worker.engine.requests) == 1

    await world.ask("d1", episode="e1", bucket=0)
    await world.until(lambda: len(worker.engine.requests) == 2)
    worker.engine.step(1000)
    await world.until_ended(2)
    await asyncio.sleep(0.1)
    assert worker.engine.requests == {}  # its tools work: its place is kept

    await world.end_episode("e1")
    await world.until(lambda: [name.partition(".")[0] for name in worker.engine.requests] == ["c2"])


async def test_where_one_worker_has_no_room_another_takes_what_is_new(world: World) -> None:
    """Nothing is lost or waits longer than it must."""
    full, other = await start(world, "n1", "n2")
    for number in range(8):
        await world.ask(f"c{number}", episode=f"e{number}", bucket=NOBODYS)
    await world.until(lambda: len(full.engine.requests) + len(other.engine.requests) == 8)

    assert len(full.engine.requests) == len(other.engine.requests) == 4


async def _claimer(world: World, generation: str) -> str:
    claims = [claim for event in await world.said(Event) if (claim := claim_of(event)) is not None]
    return next(claim.worker for claim in claims if claim.generation == generation)


def lease(*buckets: int, lent: bool = False, tags: tuple[str, ...] = TAGS) -> Lease:
    return Lease(run="r1", role=Role.ROLLOUT, epoch=1, tags=tags, buckets=buckets, lent=lent)


def test_what_is_nobodys_is_pulled_by_all_alike_and_last_by_who_is_lent() -> None:
    """It will be called back: what begins there is soon moved."""
    part = generation_consumer(TAGS, "rollout", NOBODYS)

    assert parts_of(lease(3), TAGS, 2)[part] == OWNER_PRIORITY
    assert parts_of(lease(3, lent=True), TAGS, 2)[part] == LENT_PRIORITY
    assert part in common_parts(lease(), TAGS, 2)
    assert common_parts(lease(tags=("rollout",)), TAGS, 2) == {part}
    assert common_parts(lease(0), TAGS, 1) == frozenset() and unowned_bucket(1) is None and len(all_buckets(1)) == 1


def test_a_lease_counts_its_buckets_over_the_tags_of_the_run() -> None:
    """A worker says them as generations are asked for: by tag. Numbers of tags that are not there are nobody's."""
    assert owned_buckets(lease(0, 2, 3, 9), TAGS, 2) == {"prefill+rollout": (0,), "rollout": (0, 1)}


counts = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 8), min_size=1)


@given(counts, st.integers(0, 40), st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")))
def test_what_begins_new_episodes_gets_as_much_credit_as_there_is_room(
    running: dict[str, int], room: int, common: set[str], late: set[str]
) -> None:
    """In equal shares, rounded up; what continues episodes keeps what it had, and nobody gets less than runs."""
    common &= running.keys()
    shares = {part: count + 3 for part, count in running.items()}
    given_out = with_room(shares, running, common, room=room, late=late)

    assert all(given_out[part] == shares[part] for part in running.keys() - common)
    for part in common:
        welcome = -(-room // len(common))
        assert given_out[part] - running[part] == (min(3, welcome) if part in late else welcome)


@pytest.mark.parametrize(("buckets", "is_asked"), [(1, False), (2, True)])
async def test_whether_an_episode_ended_is_asked_only_where_somebody_looks_at_the_room(
    world: World, monkeypatch: pytest.MonkeyPatch, buckets: int, is_asked: bool
) -> None:
    asked: list[str] = []

    async def has_ended(self: Interests, run: str, shard: int, episode: str) -> bool:
        asked.append(episode)
        return False

    monkeypatch.setattr(Interests, "has_ended", has_ended)
    await world.open_run(fleet={"slots": 4, "buckets": buckets})
    await world.publish_model()
    await world.publish_weights(0)
    worker = world.worker("n1")
    await world.lease(node="n1", buckets=(buckets,))
    await _until_started(world, worker)
    await world.ask("c1", episode="e1", bucket=0)
    await world.until(lambda: len(worker.engine.requests) == 1)
    worker.engine.step(1000)
    await world.until_ended(1)
    asked.clear()  # who gets a generation asks, too
    await asyncio.sleep(0.3)
    assert bool(asked) is is_asked
