"""The worker's pure decisions: moves of a lease, shares of the slots, speed, bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import Int32s, Lease, Role
from seamlessflow_rollout_worker.generations.prompts import TokenCache
from seamlessflow_rollout_worker.generations.pulls import BACKUP_PRIORITY, LENT_PRIORITY, OWNER_PRIORITY, credits_of, parts_of
from seamlessflow_rollout_worker.generations.throughput import Activity, Meter
from seamlessflow_rollout_worker.service import Move, Standing, moves

LEASES = st.builds(
    Lease,
    run=st.sampled_from([None, "a", "b"]),
    role=st.sampled_from([Role.ROLLOUT, Role.TRAIN, Role.IDLE]),
    epoch=st.just(1),
    hand_back=st.booleans(),
)


@given(st.lists(LEASES, max_size=8))
def test_every_order_of_leases_keeps_device_and_run_in_order(leases):
    """Nothing is pulled without the device; the device is let go only when nothing is sampled; runs never mix."""
    standing, is_pulling, is_sampling = Standing(), False, False
    for lease in leases:
        for move in moves(standing, lease):
            match move:
                case Move.JOIN:
                    assert standing.run is None and not standing.holds_device
                    standing = Standing(run=lease.run)
                case Move.TAKE:
                    assert standing.run == lease.run
                    standing, is_sampling = Standing(standing.run, True, True), True
                case Move.PULL:
                    assert standing.holds_device
                    is_pulling = True
                case Move.STOP:
                    is_pulling = False
                case Move.FREEZE:
                    assert not is_pulling
                    is_sampling = False
                case Move.HAND_BACK:
                    assert not is_pulling
                    is_sampling, standing = False, Standing(standing.run, standing.holds_device, False)
                case Move.RELEASE:
                    assert standing.run is not None and not is_pulling and not is_sampling
                    standing = Standing(standing.run, False, standing.holds_generations)
                case Move.LEAVE:
                    assert not standing.holds_device and not standing.holds_generations
                    standing = Standing()
        wants = lease.run is not None and lease.role is Role.ROLLOUT
        assert standing.run == lease.run and standing.holds_device == is_pulling == is_sampling == wants
        assert wants or not lease.hand_back or not standing.holds_generations


parts = st.text("ab", min_size=1, max_size=3)


@given(st.dictionaries(parts, st.integers(0, 8), min_size=1), st.integers(1, 32), st.sets(parts))
def test_open_credit_is_the_free_slots_and_no_part_starves(running, num_slots, owned):
    """At most one delivery per part beyond the slots; with a free slot every part may ask."""
    credits = credits_of(running, num_slots, owned)
    free = max(0, num_slots - sum(running.values()))

    asked = sum(credits.values()) - sum(running.values())
    assert free <= asked < free + len(running) or (free == 0 and asked == 0)
    assert all(credits[part] >= count + (free > 0) for part, count in running.items())


def lease(*tags: str, owned: tuple[int, ...] = (), lent: bool = False) -> Lease:
    return Lease(run="r", role=Role.ROLLOUT, epoch=1, tags=tags, buckets=owned, lent=lent)


def test_one_consumer_gets_all_slots():
    """The ordinary case: one tag, one bucket."""
    assert parts_of(lease("rollout", owned=(0,)), ("rollout",), 1) == {"gen-rollout-0": OWNER_PRIORITY}
    assert credits_of({"gen-rollout-0": 5}, 32) == {"gen-rollout-0": 32}


def test_owned_buckets_come_first_and_have_room_for_a_group_that_arrives_at_once():
    """Of the others this worker is a backup: asked last by the server, and with a smaller part of the free slots. What is
    nobody's is everybody's alike."""
    assert parts_of(lease("judge+rollout", "rollout", owned=(1, 3)), ("judge+rollout", "rollout"), 2) == {
        "gen-t1-0": BACKUP_PRIORITY,
        "gen-t1-1": OWNER_PRIORITY,
        "gen-t1-2": OWNER_PRIORITY,
        "gen-rollout-0": BACKUP_PRIORITY,
        "gen-rollout-1": OWNER_PRIORITY,
        "gen-rollout-2": OWNER_PRIORITY,
    }
    assert credits_of({"a": 0, "b": 2}, 32, owned={"b"}) == {"a": 6, "b": 26}


def test_a_lent_node_comes_last_of_all_but_for_the_buckets_it_owns():
    """It will be called back: what owners and backups have room for is theirs; the caches it has are its own."""
    assert parts_of(lease("rollout", owned=(1,), lent=True), ("rollout",), 2) == {
        "gen-rollout-0": LENT_PRIORITY,
        "gen-rollout-1": OWNER_PRIORITY,
        "gen-rollout-2": LENT_PRIORITY,
    }
    assert OWNER_PRIORITY < BACKUP_PRIORITY < LENT_PRIORITY


def test_a_worker_binds_to_the_consumers_of_the_tags_of_its_lease_and_no_others():
    """Buckets are counted over all tags of the run, also over those that this node has not."""
    tags = ("h800+rollout", "prefill+rollout", "rollout")

    assert parts_of(lease("rollout", owned=(4,)), tags, 2) == {
        "gen-rollout-0": OWNER_PRIORITY,
        "gen-rollout-1": BACKUP_PRIORITY,
        "gen-rollout-2": OWNER_PRIORITY,
    }


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 40)), max_size=30))
def test_the_cache_never_holds_more_than_its_bound_and_keeps_the_newest(puts):
    """What was put last is there unless it is larger than the whole cache."""
    cache = TokenCache(max_tokens=50)
    for name, length in puts:
        cache.put(("e", name), Int32s(range(length)))
        assert cache.num_tokens <= 50
        assert cache.get(("e", name)) == Int32s(range(length))


def test_the_cache_forgets_what_was_not_used_longest():
    """Reading counts as use."""
    cache = TokenCache(max_tokens=3)
    for name in "abc":
        cache.put(("e", name), Int32s([1]))
    cache.get(("e", "a"))
    cache.put(("e", "d"), Int32s([1]))

    assert [name for name in "abcd" if cache.get(("e", name))] == ["a", "c", "d"]


def test_speed_is_tokens_between_two_looks():
    """The first look has nothing to compare with."""
    meter = Meter()
    assert [meter.tokens_per_second(10, 5.0), meter.tokens_per_second(30, 7.0)] == [0.0, 10.0]


def test_only_an_engine_that_should_sample_can_stall():
    """An idle engine is silent by right; asking it starts the clock, and each token sets it back."""
    now = [10.0]
    activity = Activity(lambda: now[0])
    now[0] = 70.0
    assert activity.silent_seconds() == 0.0
    activity.begin()
    now[0] = 75.0
    assert activity.silent_seconds() == 5.0
    activity.begin()
    activity.note(1)
    assert (activity.silent_seconds(), activity.num_tokens) == (0.0, 1)
