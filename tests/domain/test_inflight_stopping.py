"""Stop texts: a generation ends with the token that completes one, however its tokens came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow_rollout_worker.generations.stop_detection import Stopping
from tests.text.words import BYTES, byte_level

WORDS = byte_level()
HIDDEN = WORDS.hidden_ids(())
SPECIALS = st.sampled_from(sorted(WORDS.special)).map(lambda i: [i])
PIECES = st.sampled_from(BYTES).map(lambda i: [i])
SAID = st.lists(st.one_of(st.text(alphabet="ab\n é漢", max_size=6).map(WORDS.encode), PIECES, SPECIALS), max_size=12).map(
    lambda parts: [i for part in parts for i in part]
)
STOPS = st.lists(st.text(alphabet="ab\n é漢", min_size=1, max_size=4), min_size=1, max_size=3)


def watch(stops: list[str]) -> Stopping:
    return Stopping(stops, WORDS.decode, HIDDEN)


def kept_of_all(ids: list[int], stops: list[str]) -> int | None:
    """How many tokens the generation has, worked out the slow way. None: no stop text is complete."""
    for count in range(1, len(ids) + 1):
        text = WORDS.decode([i for i in ids[:count] if i not in HIDDEN])
        if any(stop in text for stop in stops):
            return count
    return None


@given(SAID, STOPS)
def test_the_last_token_is_the_one_that_completes_the_first_stop_text(ids: list[int], stops: list[str]):
    """As decoding all tokens again and again would find it: characters in pieces, bytes that are none, hidden tokens."""
    stopping, expected = watch(stops), kept_of_all(ids, stops)

    assert stopping.num_kept(ids) == (len(ids) if expected is None else expected)
    assert stopping.is_complete is (expected is not None)
    assert not stopping.is_complete or stopping.num_kept([*ids, 3]) == 0


@given(SAID, STOPS, st.lists(st.tuples(st.integers(1, 5), st.booleans())))
def test_any_split_into_chunks_and_workers_keeps_the_same_tokens(
    ids: list[int], stops: list[str], splits: list[tuple[int, bool]]
):
    """A worker that takes over is told the stored tokens first; what it adds ends where the unsplit generation does."""
    stored: list[int] = []
    stopping = watch(stops)
    for count, moves_on in [*splits, (len(ids), False)]:
        if moves_on:
            stopping = watch(stops)
            assert stopping.num_kept(stored) == len(stored)
        if stopping.is_complete:
            break
        chunk = ids[len(stored) : len(stored) + count]
        stored += chunk[: stopping.num_kept(chunk)]

    unsplit = watch(stops)
    assert stored == ids[: unsplit.num_kept(ids)]
    assert stopping.is_complete is unsplit.is_complete
