"""Which server takes a request: judged by what was sent where, and by how much each has to do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow_rollout_worker.engines.remote.server_pool import BLOCK, SLACK, Affinity, chosen

LOADS = st.dictionaries(st.integers(0, 7), st.integers(0, 40), max_size=8)
IDS = st.lists(st.integers(0, 99), max_size=8 * BLOCK)


@given(LOADS, st.none() | st.integers(0, 7))
def test_nobody_gets_more_than_the_slack_above_the_least_loaded(loads: dict[int, int], favourite: int | None) -> None:
    """And only servers that can take requests are chosen."""
    place = chosen(loads, favourite)

    assert (place is None) == (not loads)
    if place is not None:
        assert loads[place] <= min(loads.values()) + (SLACK if place == favourite else 0)


@given(LOADS, st.integers(0, 7))
def test_a_favourite_that_is_not_too_busy_is_chosen(loads: dict[int, int], favourite: int) -> None:
    """Its cache is worth a little waiting."""
    is_better = favourite in loads and loads[favourite] <= min(loads.values()) + SLACK

    assert not is_better or chosen(loads, favourite) == favourite


@given(IDS, IDS, st.integers(0, 3))
def test_the_next_turn_goes_where_the_last_one_was(ids: list[int], rest: list[int], server: int) -> None:
    """When whole blocks of it are at least half of what the next turn begins with; a shorter beginning says nothing."""
    affinity = Affinity()
    affinity.note(ids, server)
    is_worth_it = len(ids) // BLOCK * BLOCK * 2 >= len(ids) + len(rest) and len(ids) >= BLOCK

    if is_worth_it:
        assert affinity.server_of(ids + rest) == server
    elif len(rest) > 2 * len(ids) or len(ids) < BLOCK:
        assert affinity.server_of(ids + [100 + each for each in rest]) is None


@given(IDS)
def test_whoever_had_a_text_last_has_it(ids: list[int]) -> None:
    """A request that went elsewhere, because the first server was busy, took its beginning along."""
    affinity = Affinity()
    affinity.note(ids, 0)
    affinity.note(ids, 1)

    assert affinity.server_of(ids) in (1, None)
    affinity.forget()
    assert affinity.server_of(ids) is None


def test_a_system_text_that_all_share_draws_nobody_to_one_server() -> None:
    """It is less than half of a prompt."""
    system = list(range(3 * BLOCK))
    affinity = Affinity()
    affinity.note(system + [1] * 5 * BLOCK, 0)

    assert affinity.server_of(system + [2] * 5 * BLOCK) is None
    assert affinity.server_of(system + [1] * 5 * BLOCK) == 0


def test_what_is_remembered_has_a_bound() -> None:
    """The oldest is forgotten first."""
    affinity = Affinity(most_blocks=4)
    old, new = [1] * 2 * BLOCK, [2] * 4 * BLOCK
    affinity.note(old, 0)
    affinity.note(new, 1)

    assert affinity.server_of(old) is None
    assert affinity.server_of(new) == 1
