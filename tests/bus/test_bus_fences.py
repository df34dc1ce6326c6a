"""Fences of one run's trainer: claims and commits on one literal subject, and messages that compare that subject.

| form | what holds on both buses |
|---|---|
| append on its own subject | of any number of concurrent appends onto one sequence exactly one is stored |
| a message that compares another literal subject | it precedes the next message of that subject, or is not stored |
| a known id whose expectation no longer holds | the expectation comes first: refused, and recognised on its own subject only |
| a known id whose expectation holds | stored once, for as long as the journal knows the id |

``commits`` is the compared subject throughout, ``drop`` a subject whose messages compare it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from seamlessflow.bus.base import Stored, StreamSpec
from seamlessflow.errors import SequenceMismatch

WINDOW_SECONDS = 0.3
"""How long the journal of a test about forgotten ids knows an id."""


def compared(world, tail, seq, *, message_id=None):
    """A message on ``tail`` that is stored only while ``seq`` is the last sequence of ``commits``."""
    return replace(world.message(tail, message_id=message_id, after=seq), expected_subject=world.subject("commits"))


async def outcome(bus, message) -> Stored | None:
    """None: refused because another message was first."""
    try:
        return await bus.publish(message)
    except SequenceMismatch:
        return None


async def ids_on(bus, world, tail) -> list[str]:
    return [record.message_id async for record in bus.read(world.journal, filters=(world.subject(tail),))]


async def short_memory(world):
    """A journal that forgets ids soon."""
    bus = await world.client()
    await bus.ensure_stream(StreamSpec(world.journal, subjects=(f"sf.{world.run}.>",), duplicate_window_seconds=WINDOW_SECONDS))
    return bus


async def test_of_concurrent_appends_onto_one_sequence_exactly_one_is_stored(world):
    """Claims of many processes with ids of their own: one holds the fence, and the next round begins at its sequence."""
    clients = [await world.with_journal(), *[await world.client() for _ in range(3)]]
    last, winners = 0, []

    for number in range(10):
        claims = [world.message("commits", message_id=f"claimed.{number}.{rival}", after=last) for rival in range(12)]
        outcomes = await asyncio.gather(*(outcome(clients[i % 4], claim) for i, claim in enumerate(claims)))

        stored = [(claim.message_id, each) for claim, each in zip(claims, outcomes, strict=True) if each is not None]
        assert len(stored) == 1
        assert not stored[0][1].duplicate
        winners.append(stored[0][0])
        last = stored[0][1].seq

    assert await ids_on(clients[0], world, "commits") == winners


async def test_a_claim_and_a_commit_onto_the_same_sequence_exclude_each_other(world):
    """Either the commit is read by the claimer, or it is refused."""
    old, new = await world.with_journal(), await world.client()
    last = (await old.publish(world.message("commits", message_id="claimed.old", after=0))).seq

    for number in range(30):
        commit = outcome(old, world.message("commits", message_id=f"committed.{number}", after=last))
        claim = outcome(new, world.message("commits", message_id=f"claimed.{number}", after=last))
        outcomes = await asyncio.gather(*((commit, claim) if number % 2 else (claim, commit)))
        won = [each for each in outcomes if each is not None]
        assert len(won) == 1
        last = won[0].seq

    assert len(await ids_on(old, world, "commits")) == 31


@pytest.mark.parametrize("num_before", [0, 2], ids=["first on its subject", "others before it"])
async def test_a_message_that_compares_another_subject_is_stored_until_that_one_moves(world, num_before):
    """Messages already on its own subject are not compared: a group may have been dropped before."""
    bus, rival = await world.with_journal(), await world.client()
    for _ in range(num_before):
        await bus.publish(world.message("drop"))
    fence = (await bus.publish(world.message("commits", after=0))).seq
    await bus.publish(world.message("elsewhere"))  # neither the stream's last sequence nor another subject's counts

    first = await bus.publish(compared(world, "drop", fence, message_id="in time"))
    second = await bus.publish(compared(world, "drop", fence, message_id="in time, too"))
    await rival.publish(world.message("commits", after=fence))
    with pytest.raises(SequenceMismatch):
        await bus.publish(compared(world, "drop", fence, message_id="late"))

    assert (first.duplicate, second.duplicate) == (False, False)
    assert (await ids_on(bus, world, "drop"))[num_before:] == ["in time", "in time, too"]


async def test_a_message_may_expect_that_another_subject_is_empty(world):
    """Sequence 0; a sequence that the compared subject never had is refused."""
    bus = await world.with_journal()

    assert await outcome(bus, compared(world, "drop", 7)) is None
    assert await outcome(bus, compared(world, "drop", 0)) is not None


@pytest.mark.parametrize("has_earlier", [False, True], ids=["first on its subject", "others before it"])
async def test_no_message_is_stored_behind_a_newer_one_of_the_subject_that_it_compares(world, has_earlier):
    """Drops of one life race with the claim of the next, from two connections: in the journal no drop of a life follows it."""
    bus, rival = await world.with_journal(), await world.client()
    if has_earlier:
        await bus.publish(world.message("drop", message_id="life 0"))
    fence = (await rival.publish(world.message("commits", message_id="claimed.1", after=0))).seq
    num_refused = 0

    for life in range(1, 26):
        drops = [outcome(bus, compared(world, "drop", fence, message_id=f"life {life}.{n}")) for n in range(20)]
        claim = rival.publish(world.message("commits", message_id=f"claimed.{life + 1}", after=fence))
        position = life % 21
        outcomes = await asyncio.gather(*drops[:position], claim, *drops[position:])
        fence = outcomes[position].seq
        num_refused += outcomes.count(None)

    newest = 0
    async for record in bus.read(world.journal):
        kind, _, life = record.message_id.replace(" ", ".").partition(".")
        if kind == "claimed":
            newest = int(life)
        else:
            assert int(life.partition(".")[0]) == newest
    assert num_refused > 0


async def test_an_expectation_counts_before_a_known_id(world):
    """A repeat of a stored message is refused once the compared subject moved; nothing tells that it was stored."""
    bus, rival = await world.with_journal(), await world.client()
    fence = (await bus.publish(world.message("commits", after=0))).seq
    drop = compared(world, "drop", fence, message_id="g1 dropped")
    stored = await bus.publish(drop)
    moved = (await rival.publish(world.message("commits", after=fence))).seq

    with pytest.raises(SequenceMismatch):
        await bus.publish(drop)
    again = await bus.publish(replace(drop, expected_last_seq=moved))  # the fence moved by our own commit: asked again

    assert again == Stored(stored.seq, duplicate=True)
    assert await ids_on(bus, world, "drop") == ["g1 dropped"]


async def test_an_id_that_another_client_used_is_refused_likewise(world):
    """A late writer is not told that its message is stored, although its successor published one with the same id."""
    late, successor = await world.with_journal(), await world.client()
    old_fence = (await late.publish(world.message("commits", after=0))).seq
    fence = (await successor.publish(world.message("commits", after=old_fence))).seq
    await successor.publish(compared(world, "drop", fence, message_id="g1 dropped"))

    with pytest.raises(SequenceMismatch):
        await late.publish(compared(world, "drop", old_fence, message_id="g1 dropped"))


async def test_a_known_id_on_its_own_subject_is_recognised_at_any_expectation_that_holds(world):
    """An id names one message: appended again behind itself it is not stored a second time."""
    bus = await world.with_journal()
    stored = await bus.publish(world.message("commits", message_id="committed.1", after=0))

    again = await bus.publish(world.message("commits", message_id="committed.1", after=stored.seq))

    assert again == Stored(stored.seq, duplicate=True)


async def test_a_commit_whose_acknowledgement_was_lost_is_recognised_after_its_id_is_forgotten(world):
    """By the first message behind the expected sequence, also when a claim follows it."""
    bus, rival = await short_memory(world), await world.client()
    claim = (await bus.publish(world.message("commits", after=0))).seq
    commit = world.message("commits", message_id="committed.1", after=claim)
    stored = await bus.publish(commit)
    await asyncio.sleep(2 * WINDOW_SECONDS)

    once_more = await bus.publish(commit)
    await rival.publish(world.message("commits", message_id="claimed.2", after=stored.seq))
    after_a_claim = await bus.publish(commit)

    assert (once_more, after_a_claim) == (Stored(stored.seq, duplicate=True),) * 2


async def test_a_refused_commit_is_told_from_a_lost_acknowledgement(world):
    """The claim that came first has another id, so nothing of the commit is stored."""
    bus, rival = await world.with_journal(), await world.client()
    claim = (await bus.publish(world.message("commits", after=0))).seq
    await rival.publish(world.message("commits", message_id="claimed.2", after=claim))

    with pytest.raises(SequenceMismatch, match=r"claimed\.2"):
        await bus.publish(world.message("commits", message_id="committed.1", after=claim))


async def test_a_comparison_whose_acknowledgement_was_lost_is_recognised_while_its_id_is_known(world):
    """The same bytes again, from the same life after a reconnect: stored once while the expectation holds."""
    bus, again = await world.with_journal(), await world.client()
    fence = (await bus.publish(world.message("commits", after=0))).seq
    drop = compared(world, "drop", fence)
    stored = await bus.publish(drop)

    assert await again.publish(drop) == Stored(stored.seq, duplicate=True)


async def test_a_comparison_that_is_repeated_after_its_id_is_forgotten_is_stored_twice(world):
    """Ten minutes in production: a fold takes the first message that closes a group and passes over the second."""
    bus = await short_memory(world)
    fence = (await bus.publish(world.message("commits", after=0))).seq
    drop = compared(world, "drop", fence, message_id="g1 dropped")
    await bus.publish(drop)
    await asyncio.sleep(2 * WINDOW_SECONDS)

    assert not (await bus.publish(drop)).duplicate
    assert await ids_on(bus, world, "drop") == ["g1 dropped"] * 2


@pytest.mark.parametrize("compares_another", [False, True], ids=["own subject", "another subject"])
async def test_the_adapter_sends_again_what_was_not_acknowledged(fragile, monkeypatch, compares_another):
    """The answer of the first try is dropped on its way: the caller sees one message, stored."""
    bus = await fragile.with_journal()
    fence = (await bus.publish(fragile.message("commits", after=0))).seq
    message = compared(fragile, "drop", fence) if compares_another else fragile.message("commits", after=fence)
    answered, request = [], bus._wire.request

    async def deaf_request(*args, **kwargs):
        answered.append(await request(*args, **kwargs))
        if len(answered) == 1:
            raise TimeoutError
        return answered[-1]

    monkeypatch.setattr(bus._wire, "request", deaf_request)
    stored = await bus.publish(message)

    assert stored == Stored(fence + 1, duplicate=True)
    assert len([record async for record in bus.read(fragile.journal)]) == fence + 1


async def test_fences_and_ids_survive_a_killed_server(fragile, own_server):
    """After the restart: repeats are recognised, the newest fence still lets through, and an older one does not."""
    bus, rival = await fragile.with_journal(), await fragile.client()
    claim = await bus.publish(fragile.message("commits", message_id="claimed.1", after=0))
    commit = fragile.message("commits", message_id="committed.1", after=claim.seq)
    committed = await bus.publish(commit)
    old = compared(fragile, "drop", claim.seq, message_id="before the commit")
    drop = compared(fragile, "drop", committed.seq, message_id="g1 dropped")
    dropped = await bus.publish(drop)

    own_server.kill()
    own_server.start()

    assert await bus.publish(commit) == Stored(committed.seq, duplicate=True)
    assert await bus.publish(drop) == Stored(dropped.seq, duplicate=True)
    assert await outcome(bus, old) is None
    assert await outcome(bus, compared(fragile, "drop", committed.seq, message_id="g2 dropped")) is not None
    rivals = [outcome(each, fragile.message("commits", after=committed.seq)) for each in (bus, rival)]
    assert (await asyncio.gather(*rivals)).count(None) == 1
    assert await outcome(bus, compared(fragile, "drop", committed.seq, message_id="g3 dropped")) is None
    assert await ids_on(bus, fragile, "drop") == ["g1 dropped", "g2 dropped"]
