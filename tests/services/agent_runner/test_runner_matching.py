"""Who gets which episode, and how many are pulled: true for any order in which agents and episodes come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow_agent_runner.external.episode_queue import Matching, Offer, Want
from seamlessflow_agent_runner.run import external_credits

TASKS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.one_of(st.none(), TASKS)),
        st.tuples(st.just("offer"), TASKS),
        st.tuples(st.just("withdraw"), st.integers(0, 100)),
    ),
    max_size=60,
)


@given(STEPS)
def test_nobody_asks_for_what_is_at_hand(steps: list[tuple[str, object]]) -> None:
    """Each episode is given once, to somebody whom it fits; the first opened goes first; nothing fitting is left over."""
    matching, given_to, asked, offered, withdrawn = Matching(), [], [], [], []
    for step, what in steps:
        at_hand, waiting = list(matching.offers), list(matching.wants)
        if step == "ask":
            want = Want(what)  # type: ignore[arg-type]
            asked.append(want)
            if (offer := matching.ask(want)) is not None:
                given_to.append((offer, want))
                assert offer.seq == min(each.seq for each in at_hand if want.task in (None, each.task))
        elif step == "offer":
            offer = Offer(str(what), len(offered))
            offered.append(offer)
            if (taker := matching.offer(offer)) is not None:
                given_to.append((offer, taker))
                fitting = [each for each in waiting if each.task in (None, offer.task)]
                named = [each for each in fitting if each.task is not None]
                assert taker.number == min(each.number for each in named or fitting)
        elif one := [*waiting, *at_hand][int(str(what)) :][:1]:
            assert matching.withdraw(one[0])
            assert not matching.withdraw(one[0])
            withdrawn += one
        assert not any(want.task in (None, offer.task) for want in matching.wants for offer in matching.offers)
        assert [want.number for want in matching.wants] == sorted(want.number for want in matching.wants)

    assert all(want.task in (None, offer.task) for offer, want in given_to)
    assert sorted(map(id, [*matching.offers, *(o for o, _ in given_to), *(o for o in offered if o in withdrawn)])) == sorted(
        map(id, offered)
    )
    assert sorted(map(id, [*matching.wants, *(w for _, w in given_to), *(w for w in asked if w in withdrawn)])) == sorted(
        map(id, asked)
    )


def test_one_who_asks_again_has_the_old_place() -> None:
    """Its episode turned out to be over: the next one is not for somebody who came later."""
    matching, first, second = Matching(), Want(), Want()
    matching.ask(first)
    assert matching.offer(Offer("a", 1)) is first
    matching.ask(second)
    matching.ask(first)

    assert matching.offer(Offer("a", 2)) is first


@given(
    st.dictionaries(
        TASKS, st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20)).map(lambda t: (t[0] + t[1], t[1], t[2]))
    ),
    st.integers(1, 30),
)
def test_only_what_is_waited_for_is_pulled(envs: dict[str, tuple[int, int, int]], total: int) -> None:
    """Never below what is held, never more new ones than missing, never beyond the places unless there were already."""
    held, unclaimed, missing = ({env: three[index] for env, three in envs.items()} for index in range(3))

    credits = external_credits(held, unclaimed, missing, total)

    new = {env: credits[env] - held[env] for env in envs}
    running = sum(held[env] - unclaimed[env] for env in envs)
    assert all(0 <= new[env] <= missing[env] for env in envs)
    assert sum(new.values()) == max(0, min(sum(missing.values()), total - running))
