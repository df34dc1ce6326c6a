"""Generations that should be long: pulled first by their owners, and last of all by a node that will be called back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.bus.base import Bus, Delivery, Message
from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.memory import MemoryBus
from seamlessflow.bus.memory_server import MemoryServer
from seamlessflow.contracts import Lease, Role, Service
from seamlessflow.contracts.streams import queue_stream, run_consumers, run_streams
from services.rollout_worker.pulls import (
    BACKUP_PRIORITY,
    DRY_SECONDS,
    LENT_PRIORITY,
    OWNER_PRIORITY,
    Pulls,
    Turns,
    credits_in_turn,
    credits_of,
    late_parts,
    parts_of,
)

RUN, TAGS = "r1", ("long+rollout", "rollout")
LONG, PLAIN = "gen-t1-0", "gen-rollout-0"
counts = st.dictionaries(st.text("ab", min_size=1, max_size=3), st.integers(0, 8), min_size=1)


def lease(*, owned: tuple[int, ...] = (), lent: bool = False, tags: tuple[str, ...] = TAGS) -> Lease:
    return Lease(run=RUN, role=Role.ROLLOUT, epoch=1, tags=tags, buckets=owned, lent=lent)


def test_a_lent_node_is_last_for_long_ones_even_of_a_bucket_that_it_owns() -> None:
    """What it has in its cache does not make up for being called back in the middle."""
    assert parts_of(lease(owned=(0, 1), lent=True), TAGS, 1) == {LONG: LENT_PRIORITY, PLAIN: OWNER_PRIORITY}
    assert parts_of(lease(owned=(0,)), TAGS, 1) == {LONG: OWNER_PRIORITY, PLAIN: BACKUP_PRIORITY}


def test_an_owner_asks_for_its_long_ones_first_and_a_lent_node_for_any_last() -> None:
    """Long ones of others' buckets can wait for their owners; where nothing tells them apart nothing waits for anything."""
    assert late_parts(lease(owned=(0, 2)), TAGS, 2) == {"gen-t1-1", "gen-rollout-0", "gen-rollout-1"}
    assert late_parts(lease(owned=(2,)), TAGS, 2) == {"gen-t1-0", "gen-t1-1"}
    assert late_parts(lease(owned=(0, 2), lent=True), TAGS, 2) == {"gen-t1-0", "gen-t1-1"}
    assert late_parts(lease(owned=(0,), tags=("rollout",)), ("rollout",), 1) == frozenset()
    assert late_parts(lease(owned=(0,), tags=("long+rollout",)), TAGS, 1) == frozenset()


@given(counts, st.integers(1, 32), st.sets(st.text("ab", min_size=1, max_size=3)), st.data())
def test_while_early_parts_bring_something_late_ones_get_nothing_new(running, num_slots, late, data) -> None:
    """They keep of their share what was promised; the others may fill every free slot, and all get it when it is their turn."""
    late &= running.keys()
    granted = {part: data.draw(st.integers(0, 40)) for part in running}
    credits = credits_in_turn(running, num_slots, late=late, granted=granted, is_dry=False)
    dry = credits_in_turn(running, num_slots, late=late, granted=granted, is_dry=True)
    free = num_slots - sum(running.values())
    early = running.keys() - late

    assert credits.keys() == dry.keys() == running.keys()
    if free <= 0:
        assert credits == dry == running
        return
    for part, count in running.items():
        assert count <= credits[part] <= dry[part]
        assert dry[part] > count
        assert part not in late or credits[part] <= max(count, granted[part])
    assert not early or free <= sum(credits[part] - running[part] for part in early) < free + len(early)
    assert sum(dry[part] - running[part] for part in late) < free + len(late)


@given(counts, st.integers(1, 32), st.sets(st.text("ab", min_size=1, max_size=3)))
def test_where_nothing_is_late_slots_are_shared_as_ever(running, num_slots, owned) -> None:
    """A run that does not tell long ones from others pays nothing."""
    now = credits_in_turn(running, num_slots, owned, late=(), granted={}, is_dry=True)

    assert now == credits_of(running, num_slots, owned)


@given(st.lists(st.tuples(st.sampled_from(["brought", "room", "full"]), st.floats(0.0, 0.2)), max_size=40))
def test_late_parts_have_their_turn_only_after_a_silence_with_room(moves) -> None:
    """And they do have it then: nothing waits for what never comes."""
    turns, now, silent_since = Turns(), 0.0, None
    for move, seconds in moves:
        now += seconds
        if move == "brought":
            turns.brought(now)
            silent_since = now
            assert not turns.is_dry
        elif not turns.is_dry:
            due = turns.asked(now, has_room=move == "room")
            silent_since = (now if silent_since is None else silent_since) if move == "room" else None
            assert turns.is_dry == (silent_since is not None and now - silent_since >= DRY_SECONDS)
            assert (due is not None) == (move == "room" and not turns.is_dry)
    turns.asked(now, has_room=True)
    turns.asked(now + 2 * DRY_SECONDS, has_room=True)
    assert turns.is_dry


class Sampled:
    """Workers on one bus, and which of them got what. Nothing is ever done with: what is taken stays."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.taken: dict[str, list[str]] = {}
        self.done = asyncio.Event()

    async def worker(self, name: str, its: Lease, *, slots: int = 4) -> Pulls:
        taken = self.taken[name] = []

        async def handle(delivery: Delivery) -> None:
            taken.append(delivery.subject.rpartition(".")[2])
            await self.done.wait()
            await delivery.ack()

        pulls = Pulls(self.bus, RUN, handle, slots)
        await pulls.open(parts_of(its, TAGS, 1), late_parts(its, TAGS, 1))
        return pulls

    async def ask(self, name: str, tag: str) -> None:
        await self.bus.publish(Message(f"sf.{RUN}.gen.{tag}.0.e.{name}", b"", name))

    async def until_queued(self, count: int) -> None:
        """A queue gets what the journal has a moment later."""
        stream = queue_stream(Service.ROLLOUT_WORKER, RUN)
        async with asyncio.timeout(5.0):
            while await self.bus.pending(stream, LONG) + await self.bus.pending(stream, PLAIN) < count:
                await asyncio.sleep(0.01)


@pytest.fixture(params=["memory", "jetstream"])
async def sampled(request: pytest.FixtureRequest) -> AsyncIterator[Sampled]:
    """On either bus."""
    bus: Bus = MemoryBus(MemoryServer())
    if request.param == "jetstream":
        bus = await connect(request.getfixturevalue("own_server").url, name="test")
    for stream in run_streams(RUN):
        await bus.ensure_stream(stream)
    for consumer in run_consumers(RUN, envs=("e",), shards=1, tags=TAGS, buckets=1):
        await bus.ensure_consumer(consumer)
    world = Sampled(bus)
    yield world
    world.done.set()
    await bus.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(5.0):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_long_one_goes_to_an_owner_and_not_to_a_lent_node_while_the_owner_has_room(sampled: Sampled) -> None:
    """Although the lent one came first and idles."""
    await sampled.worker("lent", lease(owned=(1,), lent=True))
    await sampled.worker("stays", lease(owned=(0, 1)))
    await asyncio.sleep(4 * DRY_SECONDS)  # both ask for everything
    for number in range(3):
        await sampled.ask(f"long-{number}", "long+rollout")

    await until(lambda: len(sampled.taken["stays"]) == 3)
    assert sampled.taken["lent"] == []


async def test_what_nobody_else_has_room_for_is_sampled_on_a_lent_node(sampled: Sampled) -> None:
    """Work is done wherever somebody is free to do it."""
    await sampled.worker("lent", lease(owned=(1,), lent=True))
    await sampled.worker("stays", lease(owned=(0, 1)), slots=2)
    await asyncio.sleep(4 * DRY_SECONDS)
    for number in range(6):
        await sampled.ask(f"long-{number}", "long+rollout")

    await until(lambda: sum(map(len, sampled.taken.values())) == 6)
    assert len(sampled.taken["stays"]) >= 2


async def test_long_ones_are_sampled_when_only_lent_nodes_are_there(sampled: Sampled) -> None:
    """Nothing waits for a node that may never come."""
    for number in range(3):
        await sampled.ask(f"long-{number}", "long+rollout")
    await sampled.worker("lent", lease(owned=(1,), lent=True))

    await until(lambda: len(sampled.taken["lent"]) == 3)


async def test_of_what_waits_an_owner_starts_the_long_ones_and_a_lent_node_the_others(sampled: Sampled) -> None:
    """Whatever was asked first."""
    for number in range(6):
        await sampled.ask(f"plain-{number}", "rollout")
        await sampled.ask(f"long-{number}", "long+rollout")
    await sampled.until_queued(12)
    await sampled.worker("lent", lease(owned=(1,), lent=True))
    await sampled.worker("stays", lease(owned=(0, 1)))
    await until(lambda: all(len(taken) >= 4 for taken in sampled.taken.values()))

    assert {name.partition("-")[0] for name in sampled.taken["stays"][:4]} == {"long"}
    assert {name.partition("-")[0] for name in sampled.taken["lent"][:4]} == {"plain"}


async def test_short_ones_are_not_forgotten_when_the_long_ones_are_done(sampled: Sampled) -> None:
    """An owner goes over to them as soon as its long ones bring nothing more."""
    await sampled.ask("long-0", "long+rollout")
    for number in range(3):
        await sampled.ask(f"plain-{number}", "rollout")
    await sampled.until_queued(4)
    await sampled.worker("stays", lease(owned=(0, 1)))

    await until(lambda: len(sampled.taken["stays"]) == 4)
    assert sampled.taken["stays"][0] == "long-0"


async def test_who_comes_back_from_training_does_not_know_what_waits(sampled: Sampled) -> None:
    """Nothing waited when it left; when it comes back, both do, and it takes what it is to take first."""
    its = lease(owned=(1,), lent=True)
    pulls = await sampled.worker("lent", its)
    await asyncio.sleep(4 * DRY_SECONDS)
    pulls.pause()
    await asyncio.sleep(0.05)
    for number in range(6):
        await sampled.ask(f"long-{number}", "long+rollout")
        await sampled.ask(f"plain-{number}", "rollout")
    await sampled.until_queued(12)
    await pulls.open(parts_of(its, TAGS, 1), late_parts(its, TAGS, 1))
    await until(lambda: len(sampled.taken["lent"]) >= 4)

    assert {name.partition("-")[0] for name in sampled.taken["lent"][:4]} == {"plain"}
