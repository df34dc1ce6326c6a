"""The view of a run: what people see is a fold over its journal."""

import pytest

from seamlessflow.contracts import (
    BatchReady,
    DropReason,
    EpisodeOrigin,
    EpisodeStatus,
    GroupDropped,
    GroupTrained,
    ResumeRequested,
    RolledBack,
    RunEnded,
    RunHeld,
    RunStarted,
    Sample,
    SamplesReady,
    SegmentSampled,
    StepsCommitted,
    StepTaken,
    TrainedGroup,
    TrainerClaimed,
    TrainerStarted,
    TrainingEnded,
    WeightsLoaded,
    WeightsPublished,
)
from seamlessflow.reports.run_view import RunView


def step(number, *, line=1, groups=(), version=None, **metrics):
    return StepTaken(run="r", step=number, line=line, weights_version=version or number, groups=groups, metrics=metrics)


def view_of(*events):
    view = RunView()
    for time, event in enumerate(events):
        view.apply(event, float(time))
    return view


def samples(group, *versions):
    count = sum(n for _, n in versions)
    sample = Sample(token_ids=range(count + 1), spans=((1, count + 1),), logprobs=[-1.0] * count, versions=versions)
    origin = EpisodeOrigin(group=group, task="t", env="e", index=0, attempt=0)
    return SamplesReady(
        run="r",
        episode=f"{group}-0-0",
        origin=origin,
        status=EpisodeStatus.COMPLETED,
        reward=1.0,
        samples=(sample,),
        num_sampled=count,
    )


def published(version, at_step):
    return WeightsPublished(run="r", weights_version=version, step=at_step, path="p", num_bytes=1, wall_seconds=0.1)


def test_ages_are_counted_in_optimiser_steps():
    """Tokens of version 0 and 1 trained in step 3 are two and one steps old."""
    view = view_of(published(0, 0), published(1, 1), samples("g", (0, 3), (1, 4)), step(3, groups=("g",)))

    assert view.staleness == {2: 3, 1: 4}


def test_after_a_resume_no_age_is_negative_and_no_token_counts_twice():
    """Step 2 is taken, abandoned and taken again: its group's tokens are as old as the checkpoint it went back to."""
    view = view_of(
        published(0, 0),
        step(1, version=1),
        published(1, 1),
        samples("g", (1, 5)),
        step(2, groups=("g",), version=2),
        published(2, 2),
        samples("h", (2, 7)),
        TrainerStarted(run="r", line=2, step=1, weights_version=3),
        published(3, 1),
        step(2, line=2, version=4, groups=("g", "h")),
    )

    assert view.staleness == {0: 12}


def test_abandoned_steps_leave_the_curve():
    """After a resume from step 1, the steps beyond it are done again and shown once."""
    again = TrainerStarted(run="r", line=2, step=1, weights_version=3)
    view = view_of(step(1), step(2), again, step(2, line=2, version=4))

    assert [(row.step, row.line) for row in view.steps] == [(1, 1), (2, 2)]


def test_the_rate_is_tokens_over_the_window():
    """Ten tokens over the last five seconds are two a second."""
    view = RunView()
    for time, tokens in ((0.0, 100), (5.0, 10)):
        view.apply(_segment(tokens), time)

    assert view.tokens_per_second(5.0) == 2.0


def _segment(tokens):
    return SegmentSampled(
        run="r", episode="e", generation="g", shard=0, nonce="n", start=0, token_ids=[1] * tokens, logprobs=[-1.0] * tokens,
        weights_version=0,
    )  # fmt: skip


def test_pauses_and_the_end_are_kept():
    """What the summary prints comes from here."""
    loaded = WeightsLoaded(run="r", weights_version=1, worker="w", fetch_seconds=0.5, pause_seconds=0.02, num_frozen=3)
    view = view_of(RunStarted(run="r", document={}), loaded, RunEnded(run="r", reason="completed", steps=1))

    assert view.pauses == [(1.0, 0.02)]
    assert view.ended is not None
    assert (view.started, view.ended_at) == (0.0, 2.0)


def test_forks_are_counted_by_cause():
    """As the episodes' trees were judged."""
    forked = samples("g", (0, 3)).model_copy(update={"fork_causes": {"rewritten_turn": 2}, "reprefilled_tokens": 30})

    view = view_of(forked, forked, samples("h", (0, 1)))

    assert (view.forks, view.reprefilled_tokens) == ({"rewritten_turn": 4}, 60)


def claimed(line):
    return TrainerClaimed(run="r", line=line, nonce=f"n{line}", by="trainer")


def committed(number, line, *groups):
    account = tuple(TrainedGroup(group=group, step=number, episodes=()) for group in groups)
    return StepsCommitted(
        run="r", step=number, line=line, checkpoint=f"{number}-{line}", groups=groups, nonce=f"n{line}", account=account
    )


def rolled_back(number, line, checkpoint):
    return RolledBack(run="r", step=number, line=line, nonce=f"n{line}", checkpoint=checkpoint, request="q")


def dropped(group, line=None):
    return GroupDropped(run="r", group=group, reason=DropReason.STALE, nonce="" if line is None else f"n{line}")


HELD = RunHeld(run="r", reason="damaged", nonce="n1")


@pytest.mark.parametrize(
    "late",
    [
        step(2),
        BatchReady(run="r", step=2, line=1, num_groups=1, num_tokens=1),
        TrainerStarted(run="r", line=1, step=0, weights_version=1, nonce="n1"),
        TrainerStarted(run="r", line=1, step=0, weights_version=1),
        committed(2, 1, "g"),
        StepsCommitted(run="r", step=2, line=1, checkpoint="c", groups=("g",)),
        dropped("g", 1),
        dropped("g"),
        TrainingEnded(run="r", step=2, weights_version=2, nonce="n1"),
        RunEnded(run="r", reason="stopped", steps=2),
        HELD,
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_an_abandoned_line_publishes_is_passed_over(late):
    """A newer claim is enough; its trainer need not have begun. The caller is told, so that the screen shows none of it."""
    view = view_of(claimed(1), step(1), committed(1, 1), claimed(2))

    assert view.apply(late, 9.0) is False
    assert [row.step for row in view.steps] == [1] and view.committed_step == 1
    assert not view.groups_dropped and view.training_ended is None and view.ended is None and view.held is None
    assert view.apply(step(2, line=2), 10.0) is True


def test_the_committed_step_goes_back_with_a_rollback():
    """And so does the curve; the groups that it takes back are counted as dropped."""
    view = view_of(claimed(1), step(1), committed(1, 1, "a"), step(2), committed(2, 1, "b", "c"), claimed(2))
    view.apply(rolled_back(1, 2, "1-1"), 9.0)

    assert (view.committed_step, [row.step for row in view.steps]) == (1, [1])
    assert view.groups_dropped == {"rolled_back": 2}


@pytest.mark.parametrize(
    ("closings", "num_dropped"),
    [
        ((dropped("g", 1), dropped("g", 1)), 1),
        ((committed(1, 1, "g"), dropped("g", 1)), 0),
        ((GroupTrained(run="r", group="g", step=1, episodes=()), dropped("g", 1)), 1),
    ],
    ids=["two drops", "commit then drop", "a late writer's GroupTrained then drop"],
)
def test_a_group_is_dropped_once(closings, num_dropped):
    """Its first closing counts; after the first claim a GroupTrained closes nothing that no account names."""
    assert view_of(claimed(1), *closings).groups_dropped.total() == num_dropped


@pytest.mark.parametrize(
    ("after", "is_held"),
    [
        ((), True),
        ((claimed(2),), True),
        ((ResumeRequested(run="r", request="q"),), False),
        ((claimed(2), rolled_back(1, 2, "c")), False),
        ((claimed(2), RunEnded(run="r", reason="stopped", steps=0, nonce="n2")), False),
        ((ResumeRequested(run="r", request="q"), claimed(2), HELD.model_copy(update={"nonce": "n2"})), True),
    ],
    ids=["held", "a claim", "resumed", "rolled back", "ended", "held again"],
)
def test_a_run_is_held_until_it_is_resumed_or_ends(after, is_held):
    """A claim alone decides nothing."""
    view = view_of(claimed(1), HELD, *after)

    assert (view.held is not None and view.held.reason == "damaged") is is_held
