"""How many new episodes a worker has room for, and in which of its buckets their next calls find it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from seamlessflow_rollout_worker.generations.context_budget import COUNTED_SECONDS, FILL, HOPE, LOOK_SECONDS, Contexts

OWNED = (3, 5)


def play(contexts: Contexts, episode: str, context: int, *, now: float = 0.0) -> None:
    """One call from begin to end."""
    contexts.begins(episode, 9, 1)
    contexts.sampled(episode, context, now)


def seen(context: int, *, slots: int = 65, cache: int = 10_000) -> Contexts:
    """That have seen as many episodes of this size as there are slots, and hold none."""
    contexts = Contexts(slots, cache_tokens=cache, longest_context=cache)
    for number in range(slots):
        play(contexts, f"old-{number}", context)
        contexts.over(f"old-{number}")
    return contexts


@given(st.integers(0, 64), st.integers(0, 80))
def test_an_engine_that_does_not_know_its_cache_has_room_as_long_as_it_has_slots(slots: int, running: int) -> None:
    """As it was before anybody counted contexts; what is kept of others does not count."""
    contexts = Contexts(slots)
    play(contexts, "kept", 1_000_000)
    for number in range(running):
        contexts.begins(f"e{number}", 0, 1)

    assert contexts.room == max(0, slots - running)


@given(st.integers(1, 4_000), st.floats(0, 64))
def test_new_episodes_are_taken_until_mean_contexts_fill_the_cache(context: int, times: float) -> None:
    """Those whose tools work included; and one however small the cache is."""
    cache = int(context * times)
    contexts = seen(context, cache=cache)
    taken = 0
    while contexts.room > 0:
        play(contexts, f"e{taken}", context)  # no call is running: slots limit nothing
        taken += 1

    assert taken == max(1, int(FILL * cache / context))


@given(st.integers(1, 64), st.integers(2, 10_000))
def test_as_long_as_nothing_has_ended_few_are_taken_however_short_they_are_yet(slots: int, longest: int) -> None:
    """Their contexts grow: what has been seen of them says little."""
    contexts = Contexts(slots, cache_tokens=10_000, longest_context=longest)
    few = max(1, int(FILL * 10_000 / min(HOPE * longest, 10_000 / max(1.0, HOPE * slots))))
    taken = 0
    while contexts.room > 0 and taken < 3_000:
        play(contexts, f"e{taken}", 1)
        taken += 1

    assert taken == min(few, 3_000)


def test_what_was_seen_counts_more_with_every_end() -> None:
    """And all of it once as many have ended as are here."""
    contexts = Contexts(100, cache_tokens=10_000, longest_context=4_000)
    for number in range(40):
        play(contexts, f"e{number}", 50)
    fitting = [contexts.fitting]
    for number in range(20):
        contexts.over(f"e{number}")
        fitting.append(contexts.fitting)

    known = [each for each in fitting if each is not None]
    assert len(known) == 21 and known == sorted(known)
    assert (known[0], known[-1]) == (int(FILL * 10_000 / 200), int(FILL * 10_000 / 50))


def test_calls_of_an_episode_that_is_here_take_no_room_and_those_of_others_do() -> None:
    """A second one at the same time, neither."""
    contexts = seen(1_000, cache=int(9_500 / FILL))
    before = contexts.room
    contexts.begins("e", 0, 1)
    contexts.begins("e", 0, 1)
    one = contexts.room
    contexts.begins("f", 0, 1)

    assert (before, one, contexts.room) == (9, 8, 7)
    contexts.left("e")
    assert contexts.room == 7 and contexts.holds("e")
    contexts.left("e")
    assert contexts.room == 8 and not contexts.holds("e")


def test_no_new_one_is_taken_while_contexts_are_longer_than_they_are_wont_to_be() -> None:
    """However few they are; and there is room again when they end, or are given up."""
    contexts = seen(1_000, cache=int(9_500 / FILL))
    contexts.begins("long", 0, 7_500)
    assert contexts.room == 1
    contexts.begins("longer", 0, 3_000)
    assert contexts.room == 0
    contexts.sampled("longer", 4_000, 0.0)
    contexts.over("longer")
    assert contexts.room == 1


def test_whether_an_episode_has_ended_is_asked_seldom_and_it_is_forgotten_after_a_while() -> None:
    """Only while it calls for nothing; a new call starts that again."""
    contexts = Contexts(8, cache_tokens=1_000, longest_context=100)
    play(contexts, "e", 10, now=100.0)
    asked = [now for now in range(100, 165) if contexts.to_look_for(float(now))]

    assert asked == [101, 102, 104, 108, 116, 132]
    assert not contexts.holds("e") and contexts.room == 8
    play(contexts, "f", 10, now=200.0)
    contexts.begins("f", 0, 1)
    assert contexts.to_look_for(200.0 + COUNTED_SECONDS) == [] and contexts.holds("f")
    contexts.sampled("f", 10, 300.0)
    assert contexts.to_look_for(300.0) == []
    assert contexts.to_look_for(300.0 + LOOK_SECONDS) == ["f"]


@pytest.mark.parametrize(("bucket", "owned", "next_one"), [(5, OWNED, 5), (9, OWNED, 3), (9, (), 9)])
def test_the_next_calls_of_an_episode_are_in_a_bucket_of_whoever_has_its_context(
    bucket: int, owned: tuple[int, ...], next_one: int
) -> None:
    """That of this call where it is ours, or where we have none."""
    assert Contexts(4).begins("e", bucket, 1, owned) == next_one


@given(st.lists(st.sampled_from([3, 5, 9]), min_size=1, max_size=30))
def test_episodes_that_were_nobodys_are_spread_over_our_buckets(buckets: list[int]) -> None:
    """Each to the one with the fewest; and it stays there as long as that is ours."""
    contexts, counts = Contexts(4), {3: 0, 5: 0}
    for number, bucket in enumerate(buckets):
        chosen = contexts.begins(f"e{number}", bucket, 1, OWNED)
        assert chosen == (bucket if bucket in OWNED else min(counts, key=lambda each: (counts[each], each)))
        counts[chosen] += 1
        assert contexts.begins(f"e{number}", chosen, 1, OWNED) == chosen

    contexts.begins("e0", 9, 1, (7,))
    assert contexts.begins("e0", 7, 1, (7,)) == 7


class AnyOrder(RuleBasedStateMachine):
    """Calls of six episodes begin, end, move away; time goes on; the device goes. What is counted is what a plain list says."""

    def __init__(self) -> None:
        super().__init__()
        self.contexts = Contexts(5, cache_tokens=1_000, longest_context=400)
        self.running: list[str] = []
        self.silent: set[str] = set()
        self.now = 0.0

    @rule(number=st.integers(0, 5), bucket=st.integers(0, 6))
    def begins(self, number: int, bucket: int) -> None:
        name = f"e{number}"
        chosen = self.contexts.begins(name, bucket, 1, OWNED)
        assert chosen in OWNED
        self.running.append(name)
        self.silent.discard(name)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), context=st.integers(1, 400), stays=st.booleans())
    def ends(self, data: st.DataObject, context: int, stays: bool) -> None:
        name = data.draw(st.sampled_from(self.running))
        was_silent = name in self.silent
        self.running.remove(name)
        if stays:
            self.contexts.sampled(name, context, self.now)
        else:
            self.contexts.left(name)
        if name not in self.running and (stays or was_silent):
            self.silent.add(name)

    @rule(number=st.integers(0, 6))
    def is_over(self, number: int) -> None:
        self.contexts.over(f"e{number}")
        self.silent.discard(f"e{number}")

    @rule(seconds=st.floats(0, 50))
    def time_goes_on(self, seconds: float) -> None:
        self.now += seconds
        for name in self.contexts.to_look_for(self.now):
            assert name in self.silent
        self.silent = {name for name in self.silent if self.contexts.holds(name)}

    @rule()
    def the_device_goes(self) -> None:
        self.contexts.clear()
        self.silent.clear()

    @invariant()
    def counts(self) -> None:
        assert self.contexts.num_running == len(self.running)
        assert self.contexts.num_held == len({*self.running, *self.silent})
        assert 0 <= self.contexts.room <= max(0, 5 - len(self.running))


TestAnyOrder = AnyOrder.TestCase
