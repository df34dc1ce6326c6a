"""Groups assembled from samples that come in any order, twice, or not at all."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import DropReason, EpisodeStatus, SamplesReady
from seamlessflow.errors import BadInput
from seamlessflow_trainer.data.groups import GroupBook, TrainingGroup, check_samples
from tests.domain.training_builders import a_sample, samples_ready

FAILED = EpisodeStatus.AGENT_FAILED


def a_book(**changed: object) -> GroupBook:
    settings: dict[str, object] = {"group_size": 2, "max_attempts": 2, "drop_zero_variance": True} | changed
    return GroupBook(**settings)  # type: ignore[arg-type]


def heard(book: GroupBook, *events: SamplesReady) -> list[DropReason | TrainingGroup]:
    return [judged for event in events if book.wants(event) and (judged := book.add(event)) is not None]


def test_a_group_is_ready_when_its_last_member_is_final() -> None:
    """Not before, and with its members in order of index."""
    book = a_book()

    assert heard(book, samples_ready(index=1, reward=0.0)) == []
    [group] = heard(book, samples_ready(index=0))
    assert isinstance(group, TrainingGroup)
    assert (group.rewards, book.ready) == ([1.0, 0.0], [group])


def test_a_failed_attempt_that_is_repeated_is_not_waited_on() -> None:
    """It is not wanted at all: the next attempt decides."""
    book = a_book(group_size=3)
    events = [samples_ready(index=0, status=FAILED), samples_ready(index=1), samples_ready(index=2, reward=0.0)]

    assert heard(book, *events) == []
    [group] = heard(book, samples_ready(index=0, attempt=1, reward=0.5))
    assert isinstance(group, TrainingGroup) and group.rewards == [0.5, 1.0, 0.0]


def test_a_member_whose_attempts_are_used_up_leaves_a_partial_group() -> None:
    """The others are compared among themselves."""
    events = [samples_ready(index=0, attempt=1, status=FAILED), samples_ready(index=1), samples_ready(index=2, reward=0.0)]
    [group] = heard(a_book(group_size=3), *events)

    assert isinstance(group, TrainingGroup) and len(group.members) == 2


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([samples_ready(index=0), samples_ready(index=1, attempt=1, status=FAILED)], DropReason.FAILED),
        ([samples_ready(index=0), samples_ready(index=1, status=EpisodeStatus.RUN_ENDED)], DropReason.FAILED),
        ([samples_ready(index=0), samples_ready(index=1)], DropReason.ZERO_VARIANCE),
        ([samples_ready(index=i, reward=i, samples=[a_sample([5], [])]) for i in (0, 1)], DropReason.FAILED),
    ],
)  # fmt: skip
def test_a_group_that_can_teach_nothing_is_dropped_with_the_reason(events: list[SamplesReady], reason: DropReason) -> None:
    """One member alone has nobody to be compared with; equal rewards compare to nothing; no token, no gradient."""
    assert heard(a_book(), *events) == [reason]


def test_equal_rewards_are_kept_on_request() -> None:
    """Their advantages are zero, and they count in the step."""
    [group] = heard(a_book(drop_zero_variance=False), samples_ready(index=0), samples_ready(index=1))

    assert isinstance(group, TrainingGroup)


def test_the_group_with_the_oldest_tokens_goes_first() -> None:
    """It is the one that would become too old next."""
    book = a_book()
    for group, version in (("young", 3), ("old", 1)):
        sample = a_sample([5, 6], [(1, 2)], versions=[(version, 1)])
        heard(book, *(samples_ready(group, i, reward=i, samples=[sample]) for i in (0, 1)))

    assert [group.group for group in book.ready] == ["old", "young"]


def test_a_closed_group_wants_nothing_more() -> None:
    """A redelivery after its end is only acknowledged; so are groups that were closed before we started."""
    book = a_book(closed=["earlier"])
    heard(book, samples_ready(index=0), samples_ready(index=1, reward=0.0))
    book.close("g")

    assert not book.wants(samples_ready(index=0))
    assert not book.wants(samples_ready("earlier"))
    assert (book.ready, book.held) == ([], [])


def test_groups_of_a_step_that_did_not_happen_are_ready_again() -> None:
    """Nothing was said about them."""
    book = a_book()
    [group] = heard(book, samples_ready(index=0), samples_ready(index=1, reward=0.0))
    assert isinstance(group, TrainingGroup)
    book.take([group])
    assert book.ready == []
    book.put_back([group])

    assert book.ready == [group]


MEMBERS = st.fixed_dictionaries(
    {
        "index": st.integers(0, 2),
        "group": st.sampled_from(["a", "b"]),
        "fails": st.integers(0, 2),
        "reward": st.sampled_from([0.0, 1.0]),
    }
)


def attempts(member: dict[str, object]) -> list[SamplesReady]:
    """What a fleet says of one member: failures up to ``fails``, then a success if an attempt is left."""
    fails = int(member["fails"])  # type: ignore[call-overload]
    where = {"group": member["group"], "index": member["index"]}
    failed = [samples_ready(**where, attempt=n, status=FAILED) for n in range(fails)]  # type: ignore[arg-type]
    return failed if fails == 2 else [*failed, samples_ready(**where, attempt=fails, reward=member["reward"])]  # type: ignore[arg-type]


@given(st.lists(MEMBERS, max_size=6, unique_by=lambda m: (m["group"], m["index"])), st.data())
def test_order_and_redelivery_change_nothing(members: list[dict[str, object]], data: st.DataObject) -> None:
    """However deliveries are shuffled and repeated, each group is judged once, and the same."""
    events = list(itertools.chain.from_iterable(map(attempts, members)))
    again = data.draw(st.permutations(events + events))

    def judged(sequence: list[SamplesReady]) -> list[object]:
        return sorted((j.group if isinstance(j, TrainingGroup) else j for j in heard(a_book(group_size=3), *sequence)), key=str)

    once = judged(events)
    assert judged(again) == once
    assert len(once) == sum(len([m for m in members if m["group"] == g]) == 3 for g in ("a", "b"))


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        (a_sample([5, 6], [(0, 1)]), "follows a prompt"),
        (a_sample([5, 6], [(1, 3)]), "must lie in"),
        (a_sample([5, 6, 7, 8], [(2, 3), (1, 2)]), "ascending"),
        (a_sample([5, 6, 7], [(1, 3)], versions=[(0, 1)]), "must agree"),
        (a_sample([5, 99], [(1, 2)]), "another model's tokenizer"),
    ],
)
def test_samples_that_cannot_be_trained_are_refused_with_the_reason(sample: object, what: str) -> None:
    """A peer's mistake becomes a dead letter, never a wrong gradient."""
    with pytest.raises(BadInput, match=what):
        check_samples(samples_ready(samples=[sample]), group_size=2, vocab_size=50)  # type: ignore[list-item]
