"""Generations that should be long: pulled first by their owners, and last of all by a node that will be called back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seamlessflow.bus.base import Bus, Delivery, Message
from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.contracts import Lease, Role, Service
from seamlessflow.contracts.streams import queue_stream, run_consumers, run_streams
from seamlessflow_rollout_worker.generations.pulls import (
    BACKUP_PRIORITY,
    DRY_SECONDS,
    LENT_PRIORITY,
    OWNER_PRIORITY,
    SURE_ROUND_TRIPS,
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
    assert parts_of(lease(owned=(0, 1), lent=True), TAGS, 1, True) == {LONG: LENT_PRIORITY, PLAIN: OWNER_PRIORITY}
    assert parts_of(lease(owned=(0,)), TAGS, 1, True) == {LONG: OWNER_PRIORITY, PLAIN: BACKUP_PRIORITY}


def test_an_owner_asks_for_its_long_ones_first_and_a_lent_node_for_any_last() -> None:
    """Long ones of others' buckets can wait for their owners; where nothing tells them apart nothing waits for anything."""
    plain, long = {"gen-rollout-0", "gen-rollout-1", "gen-rollout-2"}, {"gen-t1-0", "gen-t1-1", "gen-t1-2"}
    assert late_parts(lease(owned=(0, 2)), TAGS, 2, True) == {"gen-t1-1", *plain}
    assert late_parts(lease(owned=(2,)), TAGS, 2, True) == long
    assert late_parts(lease(owned=(0, 2), lent=True), TAGS, 2, True) == long
    assert late_parts(lease(owned=(0,), tags=("rollout",)), ("rollout",), 1, True) == frozenset()
    assert late_parts(lease(owned=(0,), tags=("long+rollout",)), TAGS, 1, True) == frozenset()


def test_a_run_without_classes_may_have_a_tag_of_that_name() -> None:
    """Of an older version: ``long`` is what a node has there, who owns it owns it, and nothing waits for anything."""
    its = lease(owned=(0, 1), lent=True)
    assert parts_of(its, TAGS, 1) == {LONG: OWNER_PRIORITY, PLAIN: OWNER_PRIORITY}
    assert late_parts(its, TAGS, 1) == late_parts(lease(owned=(0,)), TAGS, 1) == frozenset()


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


@dataclass
class Window:
    """What the rule says of one: what was offered, what came, what was free at each look."""

    since: float
    offered: int
    count: int = 0
    looks: list[tuple[int, int]] = field(default_factory=list)

    @property
    def room(self) -> int:
        """All that early parts might have brought: what late ones took was not theirs."""
        return min([self.offered, *(count + free for count, free in self.looks)])


steps = st.tuples(st.sampled_from(["early", "late", "end", "look"]), st.integers(1, 4), st.floats(0.0, 0.06))


@given(st.integers(1, 12), st.integers(1, 12), st.lists(steps, max_size=60))
def test_late_parts_have_their_turn_exactly_when_early_ones_left_room_for_a_whole_window(num_slots, num_parts, moves) -> None:
    """And early ones have it back exactly when they fill it; nothing is concluded while there is none."""
    turns, now, free, is_dry = Turns(), 0.0, num_slots, False
    window: Window | None = None
    for move, count, seconds in moves:
        now += seconds
        for _ in range(1 if move == "look" else min(count, num_slots - free if move == "end" else free)):
            free += {"early": -1, "late": -1, "end": 1, "look": 0}[move]
            if move == "early":
                turns.brought()
                if window is not None:
                    window.count += 1
                    is_dry, window = (False, None) if window.count >= window.room else (is_dry, window)
            assert turns.is_dry == is_dry
            share = -(-free // num_parts)
            due = turns.asked(now, free=free, share=share)
            if window is not None and now >= window.since + DRY_SECONDS and free:
                is_dry, window = True, None
            if window is not None:
                window.looks.append((window.count, free))
            if window is None or not free:
                window = Window(now, min(free, SURE_ROUND_TRIPS * share)) if free else None
            assert turns.is_dry == is_dry
            assert due == (None if window is None else window.since + DRY_SECONDS)
    turns.asked(now, free=0, share=0)
    turns.asked(now, free=1, share=1)
    turns.asked(now + DRY_SECONDS, free=1, share=1)
    assert turns.is_dry
    turns.brought()
    assert not turns.is_dry


def turns_of(arrivals: Iterable[float], *, free: int, parts: int, until: float) -> list[tuple[float, bool]]:
    """What is concluded, and when, of early parts that bring something at these times; nothing else takes slots or ends."""
    turns, said, share = Turns(), [], -(-free // parts)
    due = turns.asked(0.0, free=free, share=share)
    for at in [*(each for each in arrivals if each < until), until]:
        while due is not None and due <= at:
            now, due = due, turns.asked(due, free=free, share=share)
            said.append((now, turns.is_dry))
        if at < until:
            turns.brought()
            due = turns.asked(at, free=free, share=share)
            said.append((at, turns.is_dry))
    return said


@given(st.floats(1.0, 400.0), st.integers(24, 512))
def test_a_trickle_never_keeps_late_parts_from_room_that_it_does_not_need(per_second, free) -> None:
    """However often it drips: it is their turn from the end of the first window on."""
    arrivals = (number / per_second for number in range(1, int(per_second) + 1))
    said = turns_of(arrivals, free=free, parts=1, until=1.0)
    assert {is_dry for at, is_dry in said if at >= DRY_SECONDS} == {True}


@given(st.floats(0.0005, 0.0049), st.integers(1, 512), st.integers(1, 128))
@example(0.004716277673288078, 10, 10)  # whose last arrivals come after the end
def test_what_waits_in_one_of_many_parts_is_never_taken_for_nothing(round_trip, free, parts) -> None:
    """It brings its share of the credit in each round trip, and no more, although there is room for all of it."""
    share = -(-free // parts)
    arrivals = (trip * round_trip for trip in range(1, int(1.0 / round_trip)) for _ in range(share))
    assert not any(is_dry for _, is_dry in turns_of(arrivals, free=free, parts=parts, until=0.99))


class Sampled:
    """Workers on one bus, and which of them got what. What is taken stays until it is let go of."""

    def __init__(self, bus: Bus, buckets: int) -> None:
        self.bus, self.buckets = bus, buckets
        self.taken: dict[str, list[str]] = {}
        self.ends = asyncio.Semaphore(0)
        """One may end for each release."""

    async def worker(self, name: str, its: Lease, *, slots: int = 4) -> Pulls:
        taken = self.taken[name] = []

        async def handle(delivery: Delivery) -> None:
            taken.append(delivery.subject.rpartition(".")[2])
            await self.ends.acquire()
            await delivery.ack()

        pulls = Pulls(self.bus, RUN, handle, slots)
        run = TAGS, self.buckets, True
        await pulls.open(parts_of(its, *run), late_parts(its, *run))
        return pulls

    async def ask(self, name: str, tag: str, *, bucket: int = 0) -> None:
        await self.bus.publish(Message(f"sf.{RUN}.gen.{tag}.{bucket}.e.{name}", b"", name))

    async def until_queued(self, count: int) -> None:
        """A queue gets what the journal has a moment later."""
        stream = queue_stream(Service.ROLLOUT_WORKER, RUN)
        parts = parts_of(lease(), TAGS, self.buckets)
        async with asyncio.timeout(5.0):
            while sum([await self.bus.pending(stream, part) for part in parts]) < count:
                await asyncio.sleep(0.01)


@pytest.fixture(params=["memory", "jetstream"])
async def sampled(request: pytest.FixtureRequest) -> AsyncIterator[Sampled]:
    """On either bus. A number after its name is that of the buckets."""
    kind, _, buckets = request.param.partition("-")
    bus: Bus = MemoryBus(MemoryServer())
    if kind == "jetstream":
        bus = await connect(request.getfixturevalue("own_server").url, name="test")
    for stream in run_streams(RUN):
        await bus.ensure_stream(stream)
    for consumer in run_consumers(RUN, envs=("e",), shards=1, tags=TAGS, buckets=int(buckets or 1)):
        await bus.ensure_consumer(consumer)
    world = Sampled(bus, int(buckets or 1))
    yield world
    for _ in range(1000):
        world.ends.release()
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
    await pulls.open(parts_of(its, TAGS, 1, True), late_parts(its, TAGS, 1, True))
    await until(lambda: len(sampled.taken["lent"]) >= 4)

    assert {name.partition("-")[0] for name in sampled.taken["lent"][:4]} == {"plain"}


async def test_a_trickle_of_long_ones_keeps_nobody_waiting_for_room_that_is_there(sampled: Sampled) -> None:
    """One each 20 ms leaves dozens of slots free: short ones have them while long ones still come."""
    await sampled.worker("stays", lease(owned=(0, 1)), slots=128)
    for number in range(4):
        await sampled.ask(f"plain-{number}", "rollout")
    await sampled.until_queued(4) if not sampled.taken["stays"] else None
    for number in range(60):
        await sampled.ask(f"long-{number}", "long+rollout")
        await asyncio.sleep(0.02)

    order = [name.partition("-")[0] for name in sampled.taken["stays"]]
    assert order.count("plain") == 4 and "long" in order[-10:] and "plain" not in order[-30:]


@pytest.mark.parametrize("sampled", ["memory-32", "jetstream-32"], indirect=True)
async def test_what_waits_in_one_of_many_buckets_comes_before_what_can_wait(
    sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets only its share of the credit in each round trip, so that it takes a while to fill all slots."""
    monkeypatch.setattr(
        "seamlessflow_rollout_worker.generations.pulls.DRY_SECONDS", 0.25
    )  # beside other tests a round trip takes longer
    for number in range(200):
        await sampled.ask(f"plain-{number}", "rollout", bucket=7)
        await sampled.ask(f"long-{number}", "long+rollout", bucket=number % 32)
    await sampled.until_queued(400)
    await sampled.worker("lent", lease(lent=True), slots=192)
    await until(lambda: len(sampled.taken["lent"]) >= 192)

    assert {name.partition("-")[0] for name in sampled.taken["lent"][:192]} == {"plain"}
