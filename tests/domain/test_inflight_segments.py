"""Tokens between engine and journal: cut by version, complete, in order, and said in good time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow_rollout_worker.generations.generation_state import STREAMED, Pace, Unsaid

PACE = Pace(many=16, few=4, few_seconds=0.1, longest_seconds=1.0)
CHUNKS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=30)


@given(CHUNKS, st.integers(0, 100))
def test_segments_are_the_tokens_in_order_each_of_one_version(chunks, start):
    """Joining what was taken gives what was added, whenever it was taken; offsets are gapless."""
    unsaid, added, taken = Unsaid(start, PACE), [], []
    for count, version, take in chunks:
        tokens = list(range(len(added), len(added) + count))
        unsaid.add(tokens, [-float(token) for token in tokens], version, 0.0)
        added += [(token, version) for token in tokens]
        if take and (stretch := unsaid.take()):
            taken.append(stretch)
    while stretch := unsaid.take():
        taken.append(stretch)

    assert [(token, stretch.weights_version) for stretch in taken for token in stretch.token_ids] == added
    assert [-logprob for stretch in taken for logprob in stretch.logprobs] == [token for token, _ in added]
    offset = start
    for stretch in taken:
        assert stretch.start == offset and stretch.token_ids
        offset += len(stretch.token_ids)
    assert unsaid.num_tokens_ever == offset == start + len(added)


@given(st.integers(1, 100), st.floats(0, 10))
def test_no_token_waits_longer_than_the_pace_allows(num_tokens, age_seconds):
    """More tokens never wait longer, and older ones never longer than younger ones."""
    left = PACE.seconds_left(num_tokens, age_seconds)

    assert 0.0 <= left <= PACE.longest_seconds
    assert left + age_seconds <= max(age_seconds, PACE.longest_seconds) + 1e-9
    assert PACE.seconds_left(num_tokens + 1, age_seconds) <= left
    assert PACE.seconds_left(num_tokens, age_seconds + 0.1) <= left


@pytest.mark.parametrize(
    ("num_tokens", "age_seconds", "expected"), [(1, 0.0, 1.0), (1, 1.0, 0.0), (4, 0.0, 0.1), (4, 0.1, 0.0), (16, 0.0, 0.0)]
)
def test_many_go_at_once_a_few_soon_and_one_at_last(num_tokens, age_seconds, expected):
    """The table of the default pace."""
    assert PACE.seconds_left(num_tokens, age_seconds) == pytest.approx(expected)


@pytest.mark.parametrize("start", [0, 40], ids=["of a generation", "of a continuation"])
def test_whoever_reads_along_gets_the_first_token_at_once_and_others_soon(start):
    """The first one of every attempt, as its reader has waited for it; without a reader it waits like any other."""
    streamed, unread = Unsaid(start, STREAMED), Unsaid(start, PACE)
    for unsaid in (streamed, unread):
        unsaid.add([1], [-1.0], 0, now=0.0)
    assert (streamed.seconds_left(0.0), unread.seconds_left(0.0)) == (0.0, PACE.longest_seconds)

    streamed.take()
    streamed.add([2], [-1.0], 0, now=1.0)
    assert streamed.seconds_left(1.0) == pytest.approx(0.025)
    streamed.add(range(15), [-1.0] * 15, 0, now=1.001)
    assert streamed.seconds_left(1.001) == 0.0


def test_a_change_of_version_waits_for_nothing():
    """The closed stretch is due at once, so that versions reach the reader in order and soon."""
    unsaid = Unsaid(0, PACE)
    assert unsaid.seconds_left(0.0) is None
    unsaid.add([1], [-1.0], 0, now=0.0)
    assert unsaid.seconds_left(0.0) == 1.0
    unsaid.add([2], [-1.0], 1, now=0.0)
    assert unsaid.seconds_left(0.0) == 0.0


def test_a_token_without_its_logprob_is_our_own_mistake():
    """ids and logprobs always have one length."""
    with pytest.raises(ValueError, match="one logprob per token"):
        Unsaid(0, PACE).add([1, 2], [-1.0], 0, 0.0)
