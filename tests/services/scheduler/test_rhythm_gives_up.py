"""Groups that are dropped, one after the other: when a run gives up, and when there was only nothing left to learn."""

from __future__ import annotations

import pytest

from seamlessflow.contracts import (
    EpisodeEnded,
    EpisodeOpened,
    EpisodeStatus,
    Event,
    GroupDropped,
    RunEnded,
    StepTaken,
    TrainerStarted,
    TrainingEnded,
    TrainingEndRequested,
)
from seamlessflow_scheduler.admission.decisions import next_events
from seamlessflow_scheduler.admission.run_state import RunProgress
from tests.services.scheduler.rhythm_builders import ended, evaluated, kinds, told
from tests.services.scheduler.scheduler_world import RUN, config, task, tasks


def failed(opened: EpisodeOpened, reason: str = "No module named 'x'") -> EpisodeEnded:
    return ended(opened, EpisodeStatus.NOT_STARTED).model_copy(update={"reason": reason})


def dropped(group: str, reason: str) -> GroupDropped:
    return GroupDropped(run=RUN, group=group, reason=reason)


def run_of_drops(progress: RunProgress, count: int, reason: str, *, completed: bool, reward: float = 1.0) -> list[Event]:
    """Every group that is admitted ends and is dropped, at most ``count`` of them; returns what the last one led to."""
    published = told(progress, *tasks("t", 100), TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
    for _ in range(count):
        group = next(iter(progress.groups))
        for episode, origin_ in [each for each in progress.open_training.items() if each[1].group == group]:
            opened = EpisodeOpened.model_construct(episode=episode, origin=origin_, shard=0)
            published = told(progress, ended(opened, reward=reward) if completed else failed(opened))
        published = told(progress, dropped(group, reason))
    return published


def test_a_run_whose_groups_all_fail_stops_and_says_what_failed():
    """A mistyped entrypoint: after 2 * groups_per_step groups without any success no further group is admitted."""
    progress = RunProgress(RUN, config(fleet={"max_attempts": 1}, evaluation={"before": False, "after": True}))
    assert "GroupAdmitted" in kinds(run_of_drops(progress, 3, "failed", completed=False))

    last = next(iter(progress.groups))
    for episode, origin_ in [each for each in progress.open_training.items() if each[1].group == last]:
        told(progress, failed(EpisodeOpened.model_construct(episode=episode, origin=origin_, shard=0)))
    text = f"stopped: the last 4 groups failed: {last}-1-0: not_started: No module named 'x'"
    assert told(progress, dropped(last, "failed")) == [TrainingEndRequested(run=RUN, reason=text, train_rest=False)]

    published = told(progress, task("e1", evaluation="after"), TrainingEnded(run=RUN, step=0, weights_version=0))
    assert "EvaluationEnded" not in kinds(published) and published[-1] == RunEnded(run=RUN, reason=text, steps=0)


def test_a_run_that_never_takes_a_step_stops_and_says_so():
    """Rewards that are all 0, 20 * groups_per_step groups long: there would be no end of it."""
    progress = RunProgress(RUN, config(algorithm={"stop_after_dropped_groups": 6}))
    assert "GroupAdmitted" in kinds(run_of_drops(progress, 5, "zero_variance", completed=True, reward=0.0))

    published = run_of_drops(progress, 1, "zero_variance", completed=True, reward=0.0)
    assert [type(event) for event in published] == [TrainingEndRequested] and not published[0].train_rest
    assert published[0].reason.startswith("stopped: the last 6 groups were dropped without a step (6 zero_variance)")


STEP = StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=(), metrics={})


LINE = TrainerStarted(run=RUN, line=1, step=0, weights_version=0)


@pytest.mark.parametrize(("steps", "reward"), [(1, 0.5), (0, 1.0)])
def test_a_run_with_nothing_left_to_learn_ends_well(steps, reward):
    """It took a step before, or all is solved from the start: what runs is finished, then the rest trained, the round held."""
    limit = {"stop_after_dropped_groups": 6}
    progress = RunProgress(RUN, config(algorithm=limit, evaluation={"before": False, "after": True}))
    told(progress, task("e1", evaluation="after"), LINE, *[STEP] * steps)
    assert "GroupAdmitted" in kinds(run_of_drops(progress, 5, "zero_variance", completed=True, reward=reward))

    num_admitted = progress.admitted
    while progress.num_unfinished:
        assert progress.end_requested is None
        run_of_drops(progress, 1, "zero_variance", completed=True, reward=reward)
    assert progress.admitted == num_admitted > 6
    assert progress.end_requested == TrainingEndRequested(run=RUN, reason="nothing_left_to_learn", train_rest=True)

    after = told(progress, TrainingEnded(run=RUN, step=steps, weights_version=1))
    assert kinds(after) == ["GroupAdmitted", "EpisodeOpened"]
    last = told(progress, ended(after[1]), evaluated(after[1], 1.0))
    assert last[-1] == RunEnded(run=RUN, reason="nothing_left_to_learn", steps=steps)


def test_a_step_made_of_what_still_ran_lets_the_run_go_on():
    """The last groups in flight were worth a step after all."""
    progress = RunProgress(RUN, config(algorithm={"stop_after_dropped_groups": 6}))
    told(progress, LINE, STEP)
    run_of_drops(progress, 6, "zero_variance", completed=True)
    assert progress.num_unfinished >= 2 and next_events(progress) == []

    step = StepTaken(run=RUN, step=2, line=1, weights_version=2, groups=tuple(progress.groups)[:2], metrics={})
    assert "GroupAdmitted" in kinds(told(progress, step))


@pytest.mark.parametrize("reason", ["failed", "stale"])
def test_groups_lost_for_other_reasons_are_no_success_even_after_a_step(reason):
    """Agents that fail now and then, or samples that always come too late: the run did not end because all was learned."""
    progress = RunProgress(RUN, config(algorithm={"stop_after_dropped_groups": 6, "stop_after_failed_groups": 99}))
    told(progress, LINE, STEP)

    published = run_of_drops(progress, 6, reason, completed=True)
    assert [type(event) for event in published] == [TrainingEndRequested] and not published[0].train_rest
    assert f"6 {reason}" in published[0].reason


def test_a_success_or_a_step_starts_the_count_of_failures_again():
    """One completed episode shows that agents can work at all; a step, that the run comes on. Repeats change nothing."""
    progress = RunProgress(RUN, config(fleet={"max_attempts": 1}))
    run_of_drops(progress, 3, "failed", completed=False)
    [episode, origin_] = next(iter(progress.open_training.items()))
    success = ended(EpisodeOpened.model_construct(episode=episode, origin=origin_, shard=0))
    assert "TrainingEndRequested" not in kinds(told(progress, success, dropped(origin_.group, "failed")))
    run_of_drops(progress, 2, "failed", completed=False)
    assert "TrainingEndRequested" not in kinds(told(progress, success, success))
    assert kinds(run_of_drops(progress, 1, "failed", completed=False)) == ["TrainingEndRequested"]

    stepping = RunProgress(RUN, config(fleet={"max_attempts": 1}))
    run_of_drops(stepping, 3, "failed", completed=False)
    told(stepping, StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=(), metrics={}))
    assert "TrainingEndRequested" not in kinds(run_of_drops(stepping, 3, "failed", completed=False))
