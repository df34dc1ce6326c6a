"""The end of a run: tasks are used up, a person stops it, the journal is full, the trainer cannot go on."""

from __future__ import annotations

from seamlessflow.contracts import (
    EpisodeOpened,
    EpisodeStatus,
    RunEnded,
    RunStopRequested,
    StepTaken,
    TasksEnded,
    TrainerStarted,
    TrainingEnded,
    TrainingEndRequested,
)
from seamlessflow_scheduler.admission.decisions import Observation, next_events
from seamlessflow_scheduler.admission.run_state import RunProgress
from tests.services.scheduler.rhythm_builders import ended, evaluated, kinds, told
from tests.services.scheduler.scheduler_world import RUN, config, task, tasks


def test_the_rest_is_trained_when_no_further_batch_can_be_filled():
    """Three groups, two to a step: after the first step one is left, and only when it is finished the end is asked for."""
    progress = RunProgress(RUN, config())
    published = told(progress, *tasks("t", 3), TasksEnded(run=RUN), TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
    opened = [e for e in published if isinstance(e, EpisodeOpened)]
    told(progress, StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=("g-t0", "g-t1"), metrics={}))
    assert told(progress, *map(ended, opened[:-1])) == []

    assert told(progress, ended(opened[-1])) == [TrainingEndRequested(run=RUN, reason="tasks_ended", train_rest=True)]


def test_the_end_of_training_cuts_off_what_runs_and_opens_the_round_after():
    """Open attempts end as run_ended, open groups are dropped, held-out tasks wait for the last weights."""
    progress = RunProgress(RUN, config(evaluation={"before": False, "after": True}))
    told(progress, task("t1"), task("e1", evaluation="after"))

    published = told(progress, TrainingEnded(run=RUN, step=3, weights_version=9))
    assert kinds(published) == ["EpisodeEnded", "EpisodeEnded", "GroupDropped", "GroupAdmitted", "EpisodeOpened"]
    assert published[0].status is EpisodeStatus.RUN_ENDED and published[2].reason == "run_ended"
    assert published[4].min_weights_version == 9 and published[4].sampling.temperature == 0.0

    last = told(progress, ended(published[4]), evaluated(published[4], 1.0))
    assert kinds(last) == ["EvaluationEnded", "RunEnded"] and last[1].reason == "completed"


def test_a_stop_waits_for_the_commit_and_skips_the_round_after():
    """TrainingEndRequested without the rest, then, once the trainer committed, everything is closed as run_ended."""
    progress = RunProgress(RUN, config(evaluation={"before": False, "after": True}))
    told(progress, task("t1"), task("e1", evaluation="after"), TrainerStarted(run=RUN, line=1, step=0, weights_version=0))

    published = told(progress, RunStopRequested(run=RUN), *tasks("u", 5))
    assert published == [TrainingEndRequested(run=RUN, reason="stopped", train_rest=False)]
    last = told(progress, TrainingEnded(run=RUN, step=1, weights_version=1))
    assert kinds(last) == ["EpisodeEnded", "EpisodeEnded", "GroupDropped", "RunEnded"]
    assert last[-1] == RunEnded(run=RUN, reason="stopped", steps=1)


def test_a_stop_before_any_trainer_came_ends_at_once():
    """There is nothing to commit."""
    progress = RunProgress(RUN, config())
    told(progress, task("t1"))

    assert kinds(told(progress, RunStopRequested(run=RUN)))[-1] == "RunEnded"


def test_a_stop_with_a_reason_ends_the_run_with_what_failed():
    """A trainer that cannot load its model stops the run before it ever began a line; everybody can read why."""
    published = told(RunProgress(RUN, config()), task("t1"), RunStopRequested(run=RUN, reason="trainer: no such model"))

    assert published[-1] == RunEnded(run=RUN, reason="trainer: no such model", steps=0)


def test_a_stop_does_not_wait_for_a_trainer_that_stays_away():
    """It asks for the commit; when the trainer has been gone for long, the run ends without it."""
    progress = RunProgress(RUN, config())
    told(progress, TrainerStarted(run=RUN, line=1, step=0, weights_version=0), RunStopRequested(run=RUN))

    assert next_events(progress) == []
    assert kinds(next_events(progress, Observation(trainer_gone=True))) == ["RunEnded"]


def test_a_journal_at_80_percent_stops_admission_and_ends_the_run_in_order():
    """What is in flight is finished; the rest is trained; the run ends with its reason."""
    progress = RunProgress(RUN, config(fleet={"journal_bytes": 1000}))
    full = Observation(journal_bytes=800)
    assert kinds(told(progress, *tasks("t", 1), seen=Observation(journal_bytes=799))).count("GroupAdmitted") == 1

    assert "GroupAdmitted" not in kinds(told(progress, *tasks("u", 3), seen=full))
    opened = [EpisodeOpened.model_construct(episode=e, origin=o, shard=0) for e, o in progress.open_training.items()]
    assert kinds(told(progress, *map(ended, opened), seen=full)) == ["TrainingEndRequested"]
    assert told(progress, TrainingEnded(run=RUN, step=1, weights_version=1), seen=full)[-1].reason == "journal_full"


def test_a_trainer_that_cannot_go_on_ends_the_run_with_its_words():
    """It publishes TrainingEnded with its failure; whether its stop request comes before or after that changes nothing."""
    for stop in ([], [RunStopRequested(run=RUN, reason="trainer: no such model")]):
        progress = RunProgress(RUN, config(evaluation={"before": False, "after": True}))
        told(progress, task("t1"), task("e1", evaluation="after"), TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
        over = TrainingEnded(run=RUN, step=2, weights_version=5, failure="trainer: no such model")

        last = told(progress, over, *stop)
        assert kinds(last) == ["EpisodeEnded", "EpisodeEnded", "GroupDropped", "RunEnded"]
        assert last[-1] == RunEnded(run=RUN, reason="trainer: no such model", steps=2)
