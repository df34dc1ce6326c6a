"""The rhythm of one run: admission, attempts, evaluation rounds, steps."""

from __future__ import annotations

import pytest

from seamlessflow.contracts import (
    BatchReady,
    EpisodeEnded,
    EpisodeOpened,
    EpisodeStatus,
    EvaluationEnded,
    GroupAdmitted,
    GroupDropped,
    StepTaken,
    TasksEnded,
    TrainerStarted,
)
from seamlessflow.contracts.streams import unowned_bucket
from seamlessflow_scheduler.admission.open_group import episode_id, episode_seed, group_id
from seamlessflow_scheduler.admission.run_state import RunProgress
from tests.services.scheduler.rhythm_builders import ended, evaluated, kinds, told
from tests.services.scheduler.scheduler_world import RUN, config, origin, task, tasks


def test_a_task_becomes_one_group_of_episodes_with_derived_ids_and_seeds():
    """Ids and seeds are derived from the run and the task, so a second scheduler publishes the very same."""
    published = told(RunProgress(RUN, config(seed=7)), task("t1"))

    assert kinds(published) == ["GroupAdmitted", "EpisodeOpened", "EpisodeOpened"]
    assert [event.episode for event in published[1:]] == ["g-t1-0-0", "g-t1-1-0"]
    assert published[1].seed == episode_seed(7, "g-t1-0-0") != published[2].seed
    assert published[1].prompt == "do t1" and published[1].sampling.temperature == 1.0


def test_admission_stops_at_the_bound_and_goes_on_with_steps_and_drops():
    """(step + 1 + max_staleness) * groups_per_step = 4 at first; a dropped group and a step each make room."""
    progress = RunProgress(RUN, config())
    admitted = [e.task for e in told(progress, *tasks("t", 20)) if isinstance(e, GroupAdmitted)]
    assert admitted == ["t0", "t1", "t2", "t3"]  # as submitted

    assert kinds(told(progress, GroupDropped(run=RUN, group="g-t0", reason="failed"))).count("GroupAdmitted") == 1
    told(progress, TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
    step = StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=("g-t1", "g-t2"), metrics={})
    assert kinds(told(progress, step)).count("GroupAdmitted") == 2


def called(opened: EpisodeOpened, num_calls: int, status: EpisodeStatus = EpisodeStatus.COMPLETED) -> EpisodeEnded:
    return ended(opened, status).model_copy(update={"num_calls": num_calls})


def test_a_group_of_one_call_each_goes_whole_to_the_affinity_bucket_with_the_fewest_open_groups():
    """So siblings find each other's prompt, and no worker gets more groups than another; attempts stay in the bucket."""
    progress = RunProgress(RUN, config(fleet={"buckets": 2}))
    [first, *_] = [e for e in told(progress, task("t")) if isinstance(e, EpisodeOpened)]
    published = told(progress, called(first, 1), *tasks("t", 20))
    buckets = {e.group: e.bucket for e in published if isinstance(e, GroupAdmitted)}
    assert list(buckets.values()) == [1, 0, 1]
    assert all(e.bucket == buckets[e.origin.group] for e in published if isinstance(e, EpisodeOpened))

    opened = next(e for e in published if isinstance(e, EpisodeOpened) and e.origin.group == "g-t1")
    again = [e for e in told(progress, called(opened, 1, EpisodeStatus.AGENT_FAILED)) if isinstance(e, EpisodeOpened)]
    assert [e.bucket for e in again] == [opened.bucket]


@pytest.mark.parametrize("num_calls", [0, 5])
def test_episodes_of_several_calls_begin_where_there_is_room_and_so_do_their_next_attempts(num_calls):
    """As long as nothing is known (0: none was begun), too: they are as long as their siblings, and share little with them."""
    progress = RunProgress(RUN, config(fleet={"buckets": 2}))
    [first, second] = [e for e in told(progress, task("t")) if isinstance(e, EpisodeOpened)]
    assert first.bucket == second.bucket == unowned_bucket(2)

    published = told(progress, called(first, num_calls, EpisodeStatus.AGENT_FAILED), *tasks("t", 20))
    opened = [e for e in published if isinstance(e, EpisodeOpened)]
    assert [e.bucket for e in opened if e.origin == first.origin.model_copy(update={"attempt": 1})] == [unowned_bucket(2)]
    assert {e.bucket for e in opened if e.origin.group == "g-t1"} == {unowned_bucket(2)}


def test_an_end_that_is_delivered_again_is_counted_once():
    """Else where an episode's calls go would depend on the queue, not on the journal."""
    progress = RunProgress(RUN, config())
    first, second = [e for e in told(progress, task("t")) if isinstance(e, EpisodeOpened)]
    told(progress, called(first, 3), *[called(second, 1)] * 9)

    assert not progress.calls.is_one("single")


def test_a_task_id_seen_before_is_the_same_task():
    """A user who publishes a task again, however often, gets one group."""
    progress = RunProgress(RUN, config())
    told(progress, task("t1"))

    assert told(progress, task("t1"), task("t1", env="check")) == []


@pytest.mark.parametrize(
    ("wrong", "text"),
    [(task("t", env="unknown"), "no agent of run r1 has env 'unknown'"), (task("t", evaluation="later"), "expected nothing")],
)
def test_a_task_nobody_can_do_is_refused_with_a_reason(wrong, text):
    """The author is told what is wrong, and the run goes on as if it had never come."""
    progress = RunProgress(RUN, config())

    assert text in str(progress.refusal(wrong))
    assert told(progress, wrong) == []


def test_a_failed_attempt_is_followed_by_another_until_they_are_used_up():
    """Attempts 0, 1 and 2 of one member; the other member is not touched."""
    progress = RunProgress(RUN, config(fleet={"max_attempts": 3}))
    first = told(progress, task("t1"))[1]

    second = told(progress, ended(first, EpisodeStatus.RUNNER_LOST))
    third = told(progress, ended(second[0], EpisodeStatus.DEADLINE))
    assert [e.episode for e in second + third] == ["g-t1-0-1", "g-t1-0-2"]
    assert told(progress, ended(third[0], EpisodeStatus.AGENT_FAILED)) == []


def test_the_end_of_an_attempt_that_comes_twice_opens_one_attempt():
    """JetStream may deliver EpisodeEnded again, long after the next attempt began."""
    progress = RunProgress(RUN, config())
    first = told(progress, task("t1"))[1]
    told(progress, ended(first, EpisodeStatus.RUNNER_LOST))

    assert told(progress, ended(first, EpisodeStatus.RUNNER_LOST)) == []


def test_evaluation_before_comes_first_greedy_and_once_each():
    """Training waits until every held-out task was done; the round's end counts failures as 0 and shows them."""
    progress = RunProgress(RUN, config(evaluation={"before": True, "after": False}, fleet={"max_attempts": 1}))
    opened = [e for e in told(progress, *tasks("e", 2, evaluation="before"), task("t1")) if isinstance(e, EpisodeOpened)]
    assert [e.sampling.temperature for e in opened] == [0.0, 0.0]

    assert told(progress, ended(opened[0]), evaluated(opened[0], 1.0)) == []
    failed = EpisodeStatus.DEADLINE
    published = told(progress, ended(opened[1], failed), evaluated(opened[1], None))
    assert kinds(published) == ["EvaluationEnded", "GroupAdmitted", "EpisodeOpened", "EpisodeOpened"]
    round_ = published[0]
    assert isinstance(round_, EvaluationEnded)
    assert (round_.num_episodes, round_.num_failed, round_.mean_reward) == (2, 1, {"single": 0.5})


def test_an_evaluation_round_ends_only_when_something_else_came():
    """While neither a training task nor the end of tasks was seen, more held-out tasks may come."""
    progress = RunProgress(RUN, config(evaluation={"before": True, "after": False}))
    opened = told(progress, task("e1", evaluation="before"))[1]
    assert told(progress, ended(opened), evaluated(opened, 1.0)) == []

    assert kinds(told(progress, TasksEnded(run=RUN))) == ["EvaluationEnded", "TrainingEndRequested"]


def test_tasks_of_a_round_the_run_does_not_hold_are_counted_and_ignored():
    """evaluation.before is false: nothing is opened for them."""
    progress = RunProgress(RUN, config())

    assert told(progress, task("e1", evaluation="before")) == []
    assert progress.num_ignored == 1


def test_a_held_out_task_after_its_round_is_refused():
    """The before round is over once training began."""
    progress = RunProgress(RUN, config(evaluation={"before": True, "after": False}))
    told(progress, task("t1"))

    assert "is over" in str(progress.refusal(task("e9", evaluation="before")))


def test_a_new_line_of_the_trainer_moves_the_step_back_and_frees_the_groups():
    """Steps after the checkpoint are abandoned; later events of an older line count for nothing."""
    progress = RunProgress(RUN, config())
    told(progress, *tasks("t", 9), TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
    told(progress, StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=("g-t0", "g-t1"), metrics={}))
    assert progress.potential == progress.admitted - 2

    told(progress, TrainerStarted(run=RUN, line=2, step=0, weights_version=2))
    told(progress, BatchReady(run=RUN, step=2, line=1, num_groups=2, num_tokens=1))
    assert (progress.steps.step, progress.potential, progress.wants_train) == (0, progress.admitted, False)


def test_a_batch_is_wanted_until_its_step_is_taken():
    """BatchReady asks for the device; StepTaken gives it back; a late repeat of BatchReady asks for nothing."""
    progress = RunProgress(RUN, config())
    ready = BatchReady(run=RUN, step=1, line=1, num_groups=2, num_tokens=1)
    told(progress, TrainerStarted(run=RUN, line=1, step=0, weights_version=0), ready)
    assert progress.wants_train

    told(progress, StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=(), metrics={}), ready)
    assert not progress.wants_train


def test_long_task_ids_give_ids_that_fit_a_subject_token():
    """A task id of 128 characters is cut and told apart by a digest."""
    one, two = "x" * 128, "x" * 127 + "y"

    assert group_id(one) != group_id(two)
    assert len(episode_id(group_id(one), 999, 9)) <= 128


def test_a_closed_group_opens_no_further_attempt():
    """The trainer gave the group up; a member that fails later is not tried again."""
    progress = RunProgress(RUN, config())
    first = told(progress, task("t1"))[1]
    told(progress, GroupDropped(run=RUN, group="g-t1", reason="failed"))

    assert told(progress, ended(first, EpisodeStatus.AGENT_FAILED)) == []
    assert told(progress, EpisodeEnded(run=RUN, episode="x", shard=0, origin=origin("g-no"), status="deadline")) == []
