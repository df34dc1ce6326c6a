"""When a reader's word makes the trainer publish in full: soon where somebody waits for it, and never at every version."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import WeightsReading
from seamlessflow_trainer.weights.publisher import APART, FIRST_REST_SECONDS, LONGEST_REST_SECONDS, FullVersionRequests


def missed(*versions: int, reader: str = "w") -> list[WeightsReading]:
    return [WeightsReading(weights_version=each, path="p", reader=reader, missed="damaged") for each in versions]


def test_nobody_missed_anything():
    """Then full versions come as the run file says."""
    asked = FullVersionRequests()

    assert not asked.for_step([], version=9, newest_full=0)
    assert not asked.for_now([], newest_full=0, now=0.0)


def test_the_next_step_is_published_in_full_for_who_missed_changes():
    """Changes that cannot be had, or whatever they build on."""
    assert FullVersionRequests().for_step(missed(23), version=24, newest_full=20)


def test_a_full_version_that_came_after_what_was_missed_is_enough():
    """The word stands for a while; it was heard."""
    assert not FullVersionRequests().for_step(missed(23), version=30, newest_full=24)
    assert not FullVersionRequests().for_now(missed(23), newest_full=24, now=0.0)


def test_where_no_step_comes_it_is_published_at_once_and_again_after_longer_and_longer_rests():
    """Also where the full version itself is what cannot be had."""
    asked, at = FullVersionRequests(), []
    for now in range(4 * int(FIRST_REST_SECONDS) + 1):
        if asked.for_now(missed(20), newest_full=20, now=float(now)):
            at.append(now)

    assert at == [0, FIRST_REST_SECONDS, 3 * FIRST_REST_SECONDS]


def test_one_that_misses_everything_costs_ever_fewer_versions_where_the_trainer_often_waits():
    """Between steps, that is: they do not make it forget who it waits for in vain."""
    asked, now, version, newest_full, again = FullVersionRequests(), 0.0, 0, 0, 0
    for _ in range(20):  # steps of a minute
        version += 1
        if asked.for_step(missed(version - 1), version=version, newest_full=newest_full):
            newest_full = version
        for _ in range(10):
            now += 5.0
            if asked.for_now(missed(version), newest_full=newest_full, now=now):
                version, newest_full, again = version + 1, version + 1, again + 1
        now += 10.0
    assert again <= 7


def test_nobody_waits_for_the_rest_of_another():
    """A worker without a way to the store, and then the only one that samples."""
    asked, now = FullVersionRequests(), 0.0
    while now < LONGEST_REST_SECONDS:
        asked.for_now(missed(20, reader="far"), newest_full=20, now=now)
        now += 5.0
    both = [*missed(20, reader="far"), *missed(20)]

    assert any(asked.for_now(both, newest_full=20, now=now + wait) for wait in range(int(FIRST_REST_SECONDS) + 1))


def test_who_had_a_version_does_not_rest():
    """There is something new to be missed."""
    asked = FullVersionRequests()
    assert asked.for_now(missed(20), newest_full=20, now=0.0)
    assert not asked.for_now(missed(21), newest_full=21, now=1.0)
    asked.for_step([], version=22, newest_full=21)

    assert asked.for_now(missed(22), newest_full=21, now=2.0)


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_one_that_misses_everything_costs_a_full_version_now_and_then(regular):
    """A worker that cannot reach the store, say."""
    asked, newest_full = FullVersionRequests(), 0
    for version, is_regular in enumerate(regular, 1):
        is_asked = asked.for_step(missed(version - 1), version=version, newest_full=newest_full)
        assert not is_asked or version - newest_full >= APART
        if is_regular or is_asked:
            newest_full = version
        assert version - newest_full < APART


def test_rests_have_an_end():
    """An hour at most."""
    asked, now, last, longest = FullVersionRequests(), 0.0, 0.0, 0.0
    while now < 10 * LONGEST_REST_SECONDS:
        if asked.for_now(missed(1), newest_full=1, now=now):
            longest, last = max(longest, now - last), now
        now += 10.0
    assert longest == LONGEST_REST_SECONDS
