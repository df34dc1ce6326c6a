"""The fold of claims, commits and rollbacks: what is the newest, what counts, and what a rollback takes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.contracts import (
    DropReason,
    Event,
    GroupDropped,
    GroupTrained,
    ResumeRequested,
    RolledBack,
    RunEnded,
    RunHeld,
    StepsCommitted,
    TrainedGroup,
    TrainerClaimed,
    TrainingEnded,
)

RUN = "r"


def claimed(line: int, *, closes: bool = False) -> TrainerClaimed:
    return TrainerClaimed(run=RUN, line=line, nonce=f"n{line}", by="trainer", closes=closes)


def committed(step: int, line: int, *groups: str, attempt: str = "") -> StepsCommitted:
    """``line`` 0: by an earlier release, without a claim."""
    account = tuple(TrainedGroup(group=group, step=step, episodes=()) for group in groups) if line else ()
    nonce = f"n{line}" if line else ""
    return StepsCommitted(
        run=RUN, step=step, line=line, checkpoint=f"c{step}-{line}{attempt}", groups=groups, nonce=nonce, account=account
    )


def rolled_back(to: StepsCommitted, line: int, request: str = "q", passed_over: tuple[str, ...] = ()) -> RolledBack:
    return RolledBack(
        run=RUN, step=to.step, line=line, nonce=f"n{line}", checkpoint=to.checkpoint, request=request, passed_over=passed_over
    )


def test_the_last_commit_of_the_newest_claims_is_the_newest():
    """The server refuses a late commit of an older claim; where it lost its memory of that, the fold passes over it."""
    history = CommitHistory.of([claimed(1), committed(1, 1, "a"), claimed(2), committed(1, 2, "b"), committed(2, 1, "a")])

    assert history.newest is not None
    assert (history.newest.step, history.newest.line, history.newest.groups) == (1, 2, ("b",))


def test_commits_of_earlier_releases_count_until_the_first_claim():
    """After it they are a late writer's."""
    history = CommitHistory.of([committed(2, 0, "a"), claimed(3), committed(4, 0, "b")])

    assert [commit.step for commit in history.named] == [2]
    assert history.newest is not None and not history.newest.has_claim


def test_an_end_or_a_drop_needs_the_newest_claim_and_a_trained_group_an_account():
    """Each of them is published by earlier releases without a comparison."""
    history = CommitHistory.of([claimed(1), committed(1, 1, "a"), claimed(2)])

    assert not history.accepts(TrainingEnded(run=RUN, step=1, weights_version=1))
    assert not history.accepts(RunEnded(run=RUN, reason="stopped", steps=1, nonce="n1"))
    assert history.accepts(RunEnded(run=RUN, reason="stopped", steps=1, nonce="n2"))
    assert not history.accepts(GroupDropped(run=RUN, group="b", reason=DropReason.STALE))
    assert history.accepts(GroupTrained(run=RUN, group="a", step=1, episodes=()))
    assert not history.accepts(GroupTrained(run=RUN, group="b", step=1, episodes=()))


def test_a_rollback_takes_back_what_was_committed_after_its_checkpoint():
    """And no more than once; the checkpoint is the newest from then on, and its account stays the newest one."""
    first, second = committed(1, 1, "a"), committed(2, 1, "b", "c")
    history = CommitHistory.of([claimed(1), first, second, claimed(2)])

    assert history.apply(rolled_back(first, 2)) == ("b", "c")
    assert history.apply(rolled_back(first, 2)) == ()
    assert history.newest is not None and history.newest.is_rollback and history.newest.checkpoint == first.checkpoint
    assert [group.group for group in history.newest_account] == ["a"]
    assert [commit.checkpoint for commit in history.targets(9)] == [first.checkpoint]


def test_what_a_rollback_took_back_is_no_target_of_another_one():
    """Its groups count as rolled back, and would be in the weights again."""
    first, second, third = committed(1, 1, "a"), committed(2, 1, "b"), committed(2, 2, "c")
    history = CommitHistory.of([claimed(1), first, second, claimed(2), rolled_back(first, 2), third])

    assert [commit.checkpoint for commit in history.targets(9)] == [first.checkpoint, third.checkpoint]


def test_a_rollback_is_wanted_until_it_is_done_and_only_the_newest_request_counts():
    """A request to go on as it stands takes an older one back."""
    first = committed(1, 1, "a")
    history = CommitHistory.of([claimed(1), first, ResumeRequested(run=RUN, request="q", checkpoint_step=1)])
    assert history.wanted_step == 1
    history.apply(claimed(2))
    history.apply(rolled_back(first, 2))
    assert history.wanted_step is None
    history.apply(ResumeRequested(run=RUN, request="q2", checkpoint_step=7))
    history.apply(ResumeRequested(run=RUN, request="q3"))
    assert history.wanted_step is None


def test_a_run_is_held_until_a_person_answers_or_it_ends():
    """A hold of an older claim holds nothing."""
    held = RunHeld(run=RUN, reason="damaged", nonce="n1")
    assert CommitHistory.of([claimed(1), held]).held == held
    assert CommitHistory.of([claimed(1), held, ResumeRequested(run=RUN, request="q")]).held is None
    assert (
        CommitHistory.of([claimed(1), held, claimed(2), RunEnded(run=RUN, reason="stopped", steps=0, nonce="n2")]).held is None
    )
    assert CommitHistory.of([claimed(1), claimed(2), held]).held is None


def test_a_closing_claim_ends_training():
    """No trainer goes on after it."""
    assert not CommitHistory.of([claimed(1)]).is_over
    assert CommitHistory.of([claimed(1), claimed(2, closes=True)]).is_over


def test_a_checkpoint_is_explained_by_its_claim_and_its_predecessor():
    """Both are in the journal, or it lost its end."""
    history = CommitHistory.of([claimed(1), committed(1, 1, "a")])

    assert history.knows(nonce="n1", predecessor="c1-1") and history.knows(nonce="n1", predecessor=None)
    assert not history.knows(nonce="n2", predecessor="c1-1") and not history.knows(nonce="n1", predecessor="c2-1")


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Lives that claim, commit some steps each, and now and then go back."""
    events: list[Event] = []
    chain: list[StepsCommitted] = []
    number = 0
    for line in range(1, draw(st.integers(1, 5)) + 1):
        events.append(claimed(line))
        if chain and draw(st.booleans()):
            chain = chain[: draw(st.integers(1, len(chain)))]
            events.append(rolled_back(chain[-1], line, request=f"q{line}"))
        for _ in range(draw(st.integers(0, 4))):
            number += 1
            commit = committed(len(chain) + 1, line, f"g{number}", attempt=f"-{number}")
            chain.append(commit)
            events.append(commit)
    return events


@given(histories(), st.integers(1, 4))
def test_every_group_counts_unless_it_was_taken_back_and_targets_are_kept(events: list[Event], keep: int):
    """Groups of surviving commits and those taken back are all there are, and no group is both."""
    history, taken_back = CommitHistory(), list[str]()
    for event in events:
        taken_back += history.apply(event)

    surviving = [group for commit in history.surviving for group in commit.groups]
    everything = [group for event in events if isinstance(event, StepsCommitted) for group in event.groups]
    assert sorted(surviving + taken_back) == sorted(everything)
    assert {commit.checkpoint for commit in history.targets(keep)} <= set(history.kept(keep))
    assert len(history.kept(keep)) == len(set(history.kept(keep))) <= keep
    if history.newest is not None:
        assert history.newest.checkpoint in history.kept(keep)
        assert [commit.step for commit in history.surviving] == list(range(1, history.newest.step + 1))


@given(histories(), st.data())
def test_an_event_that_comes_again_changes_nothing(events: list[Event], data: st.DataObject):
    """Queues deliver at least once, and not always in order the second time."""
    once, again = CommitHistory(is_ordered=False), CommitHistory(is_ordered=False)
    for number, event in enumerate(events):
        once.apply(event)
        again.apply(event)
        again.apply(events[data.draw(st.integers(0, number))])

    assert (once.named, once.claims, once.surviving) == (again.named, again.claims, again.surviving)
