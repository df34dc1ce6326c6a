"""Who owns which affinity bucket, and which bucket an episode has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import EpisodeEnded, EpisodeStatus
from seamlessflow.contracts.streams import unowned_bucket
from seamlessflow_scheduler.placement.affinity import CallStatistics, owners
from tests.services.scheduler.scheduler_world import RUN, origin

FLEETS = st.integers(1, 12).flatmap(
    lambda size: st.tuples(
        st.integers(size, 64),
        st.just(tuple(f"n{number:05}" for number in range(size))),
        st.sets(st.integers(0, size - 1), min_size=1),
    )
)
"""Buckets, at least as many as nodes; all nodes that may roll out; those that do, by number."""


def ended(env: str, num_calls: int) -> EpisodeEnded:
    of = origin("g", 0).model_copy(update={"env": env})
    return EpisodeEnded(run=RUN, episode="e-0", shard=0, origin=of, status=EpisodeStatus.COMPLETED, num_calls=num_calls)


def owned(num_buckets: int, able: tuple[str, ...], numbers: set[int]) -> dict[str, set[int]]:
    rolling = tuple(able[number] for number in sorted(numbers))
    return {name: set(buckets) for name, buckets in owners(num_buckets, able, rolling).items()}


@given(fleet=FLEETS)
def test_every_bucket_has_exactly_one_owner_among_those_that_roll_out_as_even_as_can_be(fleet):
    num_buckets, able, numbers = fleet
    split = owned(num_buckets, able, numbers)

    assert set(split) == {able[number] for number in numbers}
    assert sorted(bucket for buckets in split.values() for bucket in buckets) == list(range(num_buckets))
    assert max(map(len, split.values())) - min(map(len, split.values())) <= 1


@given(fleet=FLEETS)
def test_who_rolls_out_keeps_its_own_buckets_whoever_else_trains(fleet):
    """So nothing moves but what belongs to those that train, and all of it is back when they are."""
    num_buckets, able, numbers = fleet
    home, split = owned(num_buckets, able, set(range(len(able)))), owned(num_buckets, able, numbers)

    assert all(home[name] <= split[name] for name in split)


def test_few_buckets_move_when_a_node_joins_or_dies():
    """Names alone decide, so what moves beyond the share of that node is what makes room, over many fleets."""
    beyond = shares = 0
    for size in range(2, 13):
        names = tuple(f"n{number:05}" for number in range(size))
        before, after = owned(64, names, set(range(size))), owned(64, names[:-1], set(range(size - 1)))
        shares += len(before[names[-1]])
        beyond += sum(len(before[name] - after[name]) for name in after)
    assert beyond <= shares


def test_where_nobody_rolls_out_nobody_owns_anything():
    assert owners(4, ("a", "b"), ()) == {}


@given(counts=st.lists(st.integers(0, 4)), order=st.randoms())
def test_an_environment_is_of_one_call_as_its_ends_say_in_whatever_order(counts, order):
    calls, again = CallStatistics(), CallStatistics()
    for count in counts:
        calls.ended(ended("web", count))
    order.shuffle(counts)
    for count in counts:
        again.ended(ended("web", count))

    assert calls == again and not calls.is_one("other")
    began = [count for count in counts if count]
    assert calls.is_one("web") is (bool(began) and sum(began) / len(began) < 1.5)


@given(group=st.integers(0, 63), num_buckets=st.integers(1, 64))
def test_an_episode_begins_in_the_bucket_of_its_group_or_where_there_is_room(group, num_buckets):
    """The unowned bucket, where episodes are several calls; with one bucket there is no choice."""
    group %= num_buckets
    several, one = CallStatistics(), CallStatistics()
    several.ended(ended("web", 9))
    one.ended(ended("web", 1))

    assert one.bucket("web", group, num_buckets) == group
    assert (
        several.bucket("web", group, num_buckets)
        == CallStatistics().bucket("web", group, num_buckets)
        == (unowned_bucket(num_buckets) or 0)
    )
    assert (unowned_bucket(num_buckets) is None) is (num_buckets == 1)
