"""Buckets: compare-and-set, times to live, all entries."""

from __future__ import annotations

import asyncio

import pytest

from seamlessflow.errors import BadInput, SequenceMismatch


@pytest.fixture
async def bucket(world):
    return await (await world.client()).kv(f"B_{world.run}")


async def test_a_key_is_what_was_put_last(bucket):
    """A revision grows with each put."""
    assert await bucket.get("node.1") is None
    first = await bucket.put("node.1", b"a")
    second = await bucket.put("node.1", b"b")

    entry = await bucket.get("node.1")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision) == ("node.1", b"b", second)
    assert second > first


async def test_a_key_is_created_once(bucket):
    """Whoever creates first holds the lease."""
    await bucket.create("lease", b"mine")

    with pytest.raises(SequenceMismatch):
        await bucket.create("lease", b"yours")


async def test_an_update_needs_the_current_revision(bucket):
    """Two who read the same revision: one wins."""
    revision = await bucket.create("head", b"1")
    await bucket.update("head", b"2", revision)

    with pytest.raises(SequenceMismatch):
        await bucket.update("head", b"3", revision)

    entry = await bucket.get("head")
    assert entry is not None and entry.value == b"2"


async def test_a_deleted_key_is_gone_and_can_be_created_again(bucket):
    """Deleting what is not there is fine."""
    await bucket.put("k", b"1")
    await bucket.delete("k")
    await bucket.delete("k")
    assert await bucket.get("k") is None
    assert await bucket.entries() == []

    await bucket.create("k", b"2")

    entry = await bucket.get("k")
    assert entry is not None and entry.value == b"2"


async def test_a_value_with_a_time_to_live_ends_and_a_renewed_one_does_not(bucket):
    """A lease lives as long as it is renewed; then another may create it."""
    await bucket.create("dead", b"x", ttl_seconds=1)
    revision = await bucket.create("alive", b"y", ttl_seconds=1)
    for _ in range(5):
        await asyncio.sleep(0.4)
        revision = await bucket.update("alive", b"y", revision, ttl_seconds=1)

    assert await bucket.get("dead") is None
    assert [entry.key for entry in await bucket.entries()] == ["alive"]
    await bucket.create("dead", b"again", ttl_seconds=1)


async def test_a_key_that_is_renewed_all_the_time_is_in_every_listing(bucket):
    """Who renews its presence just while it is read is there."""
    await asyncio.gather(bucket.put("steady", b"0"), bucket.put("renewed", b"0"))
    done = asyncio.Event()

    async def renew():
        while not done.is_set():
            await bucket.put("renewed", b"x", ttl_seconds=5)

    renewing = asyncio.create_task(renew())
    listings = [{entry.key for entry in await bucket.entries()} for _ in range(60)]
    done.set()
    await renewing

    assert listings == [{"steady", "renewed"}] * 60


async def test_entries_are_all_live_keys_with_their_latest_values(world, bucket):
    """More than a batch of them; another client sees the same."""
    await asyncio.gather(*(bucket.put(f"n.{number}", b"old") for number in range(600)))
    await bucket.put("n.7", b"new")
    await bucket.delete("n.8")

    seen = await (await (await world.client()).kv(f"B_{world.run}")).entries()

    values = {entry.key: entry.value for entry in seen}
    assert len(seen) == len(values) == 599
    assert (values["n.7"], values["n.9"], "n.8" in values) == (b"new", b"old", False)


async def test_a_key_that_is_no_subject_and_a_time_below_a_second_are_refused(bucket):
    """The server would count half a second as none."""
    with pytest.raises(BadInput):
        await bucket.put("a key", b"")
    with pytest.raises(BadInput):
        await bucket.put("key", b"", ttl_seconds=0)
