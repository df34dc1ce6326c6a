"""The rhythm of one run: admission, attempts, evaluation rounds, the end; and that dying anywhere changes nothing."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_world import RUN, Agents, Journal, Trainer, config, origin, task, tasks

from seamlessflow.contracts import (
    BatchReady,
    EpisodeEnded,
    EpisodeEvaluated,
    EpisodeOpened,
    EpisodeStatus,
    EvaluationEnded,
    Event,
    GroupAdmitted,
    GroupDropped,
    RunEnded,
    RunStopRequested,
    SamplesReady,
    StepTaken,
    TasksEnded,
    TrainerStarted,
    TrainingEnded,
    TrainingEndRequested,
)
from seamlessflow.ledger import Ledger
from services.scheduler.names import episode_id, episode_seed, group_id
from services.scheduler.progress import Progress
from services.scheduler.rhythm import NOTHING, Observation, admission_bound, decide


def told(progress: Progress, *events: Event, seen: Observation = NOTHING) -> list[Event]:
    """Apply events, then everything that the scheduler says in turn until it is silent; returns what it said."""
    for event in events:
        progress.apply(event)
    said: list[Event] = []
    while due := decide(progress, seen):
        for event in due:
            progress.apply(event)
        said += due
    return said


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def ended(opened: EpisodeOpened, status: EpisodeStatus = EpisodeStatus.COMPLETED, reward: float | None = 1.0) -> EpisodeEnded:
    reward = reward if status is EpisodeStatus.COMPLETED else None
    return EpisodeEnded(run=RUN, episode=opened.episode, shard=opened.shard, origin=opened.origin, status=status, reward=reward)


def evaluated(opened: EpisodeOpened, reward: float | None) -> EpisodeEvaluated:
    status = EpisodeStatus.COMPLETED if reward is not None else EpisodeStatus.DEADLINE
    return EpisodeEvaluated(
        run=RUN,
        episode=opened.episode,
        origin=opened.origin,
        status=status,
        reward=reward,
        num_sampled=3,
        weights_versions=(0,),
    )


def test_a_task_becomes_one_group_of_episodes_with_derived_ids_and_seeds():
    """Ids and seeds are derived from the run and the task, so a second scheduler says the very same."""
    said = told(Progress(RUN, config(seed=7)), task("t1"))

    assert kinds(said) == ["GroupAdmitted", "EpisodeOpened", "EpisodeOpened"]
    assert [event.episode for event in said[1:]] == ["g-t1-0-0", "g-t1-1-0"]
    assert said[1].seed == episode_seed(7, "g-t1-0-0") != said[2].seed
    assert said[1].prompt == "do t1" and said[1].sampling.temperature == 1.0


def test_admission_stops_at_the_bound_and_goes_on_with_steps_and_drops():
    """(step + 1 + max_staleness) * groups_per_step = 4 at first; a dropped group and a step each make room."""
    progress = Progress(RUN, config())
    admitted = [e.task for e in told(progress, *tasks("t", 20)) if isinstance(e, GroupAdmitted)]
    assert admitted == ["t0", "t1", "t2", "t3"]  # as submitted

    assert kinds(told(progress, GroupDropped(run=RUN, group="g-t0", reason="failed"))).count("GroupAdmitted") == 1
    told(progress, TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
    step = StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=("g-t1", "g-t2"), metrics={})
    assert kinds(told(progress, step)).count("GroupAdmitted") == 2


def test_a_task_id_seen_before_is_the_same_task():
    """A user who publishes a task again, however often, gets one group."""
    progress = Progress(RUN, config())
    told(progress, task("t1"))

    assert told(progress, task("t1"), task("t1", env="check")) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(task("t", env="nobody"), "no agent of run r1 has env 'nobody'"), (task("t", evaluation="later"), "expected nothing")],
)
def test_a_task_nobody_can_do_is_refused_with_words(wrong, words):
    """The author is told what is wrong, and the run goes on as if it had never come."""
    progress = Progress(RUN, config())

    assert words in str(progress.refusal(wrong))
    assert told(progress, wrong) == []


def test_a_failed_attempt_is_followed_by_another_until_they_are_used_up():
    """Attempts 0, 1 and 2 of one member; the other member is not touched."""
    progress = Progress(RUN, config(fleet={"max_attempts": 3}))
    first = told(progress, task("t1"))[1]

    second = told(progress, ended(first, EpisodeStatus.RUNNER_LOST))
    third = told(progress, ended(second[0], EpisodeStatus.DEADLINE))
    assert [e.episode for e in second + third] == ["g-t1-0-1", "g-t1-0-2"]
    assert told(progress, ended(third[0], EpisodeStatus.AGENT_FAILED)) == []


def test_the_end_of_an_attempt_that_comes_twice_opens_one_attempt():
    """JetStream may deliver EpisodeEnded again, long after the next attempt began."""
    progress = Progress(RUN, config())
    first = told(progress, task("t1"))[1]
    told(progress, ended(first, EpisodeStatus.RUNNER_LOST))

    assert told(progress, ended(first, EpisodeStatus.RUNNER_LOST)) == []


def test_evaluation_before_comes_first_greedy_and_once_each():
    """Training waits until every held-out task was done; the round's end counts failures as 0 and shows them."""
    progress = Progress(RUN, config(evaluation={"before": True, "after": False}, fleet={"max_attempts": 1}))
    opened = [e for e in told(progress, *tasks("e", 2, evaluation="before"), task("t1")) if isinstance(e, EpisodeOpened)]
    assert [e.sampling.temperature for e in opened] == [0.0, 0.0]

    assert told(progress, ended(opened[0]), evaluated(opened[0], 1.0)) == []
    failed = EpisodeStatus.DEADLINE
    said = told(progress, ended(opened[1], failed), evaluated(opened[1], None))
    assert kinds(said) == ["EvaluationEnded", "GroupAdmitted", "EpisodeOpened", "EpisodeOpened"]
    round_ = said[0]
    assert isinstance(round_, EvaluationEnded)
    assert (round_.num_episodes, round_.num_failed, round_.mean_reward) == (2, 1, {"single": 0.5})


def test_an_evaluation_round_ends_only_when_something_else_came():
    """While neither a training task nor the end of tasks was seen, more held-out tasks may come."""
    progress = Progress(RUN, config(evaluation={"before": True, "after": False}))
    opened = told(progress, task("e1", evaluation="before"))[1]
    assert told(progress, ended(opened), evaluated(opened, 1.0)) == []

    assert kinds(told(progress, TasksEnded(run=RUN))) == ["EvaluationEnded", "TrainingEndRequested"]


def test_tasks_of_a_round_the_run_does_not_hold_are_counted_and_ignored():
    """evaluation.before is false: nothing is opened for them."""
    progress = Progress(RUN, config())

    assert told(progress, task("e1", evaluation="before")) == []
    assert progress.num_ignored == 1


def test_a_held_out_task_after_its_round_is_refused():
    """The before round is over once training began."""
    progress = Progress(RUN, config(evaluation={"before": True, "after": False}))
    told(progress, task("t1"))

    assert "is over" in str(progress.refusal(task("e9", evaluation="before")))


def test_a_new_line_of_the_trainer_moves_the_step_back_and_frees_the_groups():
    """Steps after the checkpoint are abandoned; what an older line still says counts for nothing."""
    progress = Progress(RUN, config())
    told(progress, *tasks("t", 9), TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
    told(progress, StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=("g-t0", "g-t1"), metrics={}))
    assert progress.potential == progress.admitted - 2

    told(progress, TrainerStarted(run=RUN, line=2, step=0, weights_version=2))
    told(progress, BatchReady(run=RUN, step=2, line=1, num_groups=2, num_tokens=1))
    assert (progress.steps.step, progress.potential, progress.wants_train) == (0, progress.admitted, False)


def test_a_batch_is_wanted_until_its_step_is_taken():
    """BatchReady asks for the device; StepTaken gives it back; a late repeat of BatchReady asks for nothing."""
    progress = Progress(RUN, config())
    ready = BatchReady(run=RUN, step=1, line=1, num_groups=2, num_tokens=1)
    told(progress, TrainerStarted(run=RUN, line=1, step=0, weights_version=0), ready)
    assert progress.wants_train

    told(progress, StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=(), metrics={}), ready)
    assert not progress.wants_train


def test_the_rest_is_trained_when_no_further_batch_can_be_filled():
    """Three groups, two to a step: after the first step one is left, and only when it is finished the end is asked for."""
    progress = Progress(RUN, config())
    said = told(progress, *tasks("t", 3), TasksEnded(run=RUN), TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
    opened = [e for e in said if isinstance(e, EpisodeOpened)]
    told(progress, StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=("g-t0", "g-t1"), metrics={}))
    assert told(progress, *map(ended, opened[:-1])) == []

    assert told(progress, ended(opened[-1])) == [TrainingEndRequested(run=RUN, reason="tasks_ended", train_rest=True)]


def test_the_end_of_training_cuts_off_what_runs_and_opens_the_round_after():
    """Open attempts end as run_ended, open groups are dropped, held-out tasks wait for the last weights."""
    progress = Progress(RUN, config(evaluation={"before": False, "after": True}))
    told(progress, task("t1"), task("e1", evaluation="after"))

    said = told(progress, TrainingEnded(run=RUN, step=3, weights_version=9))
    assert kinds(said) == ["EpisodeEnded", "EpisodeEnded", "GroupDropped", "GroupAdmitted", "EpisodeOpened"]
    assert said[0].status is EpisodeStatus.RUN_ENDED and said[2].reason == "run_ended"
    assert said[4].min_weights_version == 9 and said[4].sampling.temperature == 0.0

    last = told(progress, ended(said[4]), evaluated(said[4], 1.0))
    assert kinds(last) == ["EvaluationEnded", "RunEnded"] and last[1].reason == "completed"


def test_a_stop_waits_for_the_commit_and_skips_the_round_after():
    """TrainingEndRequested without the rest, then, once the trainer committed, everything is closed as run_ended."""
    progress = Progress(RUN, config(evaluation={"before": False, "after": True}))
    told(progress, task("t1"), task("e1", evaluation="after"), TrainerStarted(run=RUN, line=1, step=0, weights_version=0))

    said = told(progress, RunStopRequested(run=RUN), *tasks("u", 5))
    assert said == [TrainingEndRequested(run=RUN, reason="stopped", train_rest=False)]
    last = told(progress, TrainingEnded(run=RUN, step=1, weights_version=1))
    assert kinds(last) == ["EpisodeEnded", "EpisodeEnded", "GroupDropped", "RunEnded"]
    assert last[-1] == RunEnded(run=RUN, reason="stopped", steps=1)


def test_a_stop_before_any_trainer_came_ends_at_once():
    """There is nothing to commit."""
    progress = Progress(RUN, config())
    told(progress, task("t1"))

    assert kinds(told(progress, RunStopRequested(run=RUN)))[-1] == "RunEnded"


def test_a_stop_with_a_reason_ends_the_run_with_what_failed():
    """A trainer that cannot load its model stops the run before it ever began a line; everybody can read why."""
    said = told(Progress(RUN, config()), task("t1"), RunStopRequested(run=RUN, reason="trainer: no such model"))

    assert said[-1] == RunEnded(run=RUN, reason="trainer: no such model", steps=0)


def test_a_stop_does_not_wait_for_a_trainer_that_stays_away():
    """It asks for the commit; when the trainer has been gone for long, the run ends without it."""
    progress = Progress(RUN, config())
    told(progress, TrainerStarted(run=RUN, line=1, step=0, weights_version=0), RunStopRequested(run=RUN))

    assert decide(progress) == []
    assert kinds(decide(progress, Observation(trainer_gone=True))) == ["RunEnded"]


def test_a_journal_at_80_percent_stops_admission_and_ends_the_run_in_order():
    """What is in flight is finished; the rest is trained; the run ends and says why."""
    progress = Progress(RUN, config(fleet={"journal_bytes": 1000}))
    full = Observation(journal_bytes=800)
    assert kinds(told(progress, *tasks("t", 1), seen=Observation(journal_bytes=799))).count("GroupAdmitted") == 1

    assert "GroupAdmitted" not in kinds(told(progress, *tasks("u", 3), seen=full))
    opened = [EpisodeOpened.model_construct(episode=e, origin=o, shard=0) for e, o in progress.open_training.items()]
    assert kinds(told(progress, *map(ended, opened), seen=full)) == ["TrainingEndRequested"]
    assert told(progress, TrainingEnded(run=RUN, step=1, weights_version=1), seen=full)[-1].reason == "journal_full"


def failed(opened: EpisodeOpened, reason: str = "No module named 'x'") -> EpisodeEnded:
    return ended(opened, EpisodeStatus.NOT_STARTED).model_copy(update={"reason": reason})


def dropped(group: str, reason: str) -> GroupDropped:
    return GroupDropped(run=RUN, group=group, reason=reason)


def run_of_drops(progress: Progress, count: int, reason: str, *, completed: bool, reward: float = 1.0) -> list[Event]:
    """Every group that is admitted ends and is dropped, at most ``count`` of them; returns what the last one led to."""
    said = told(progress, *tasks("t", 100), TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
    for _ in range(count):
        group = next(iter(progress.groups))
        for episode, origin_ in [each for each in progress.open_training.items() if each[1].group == group]:
            opened = EpisodeOpened.model_construct(episode=episode, origin=origin_, shard=0)
            said = told(progress, ended(opened, reward=reward) if completed else failed(opened))
        said = told(progress, dropped(group, reason))
    return said


def test_a_run_whose_groups_all_fail_stops_and_says_what_failed():
    """A mistyped entrypoint: after 2 * groups_per_step groups without any success no further group is admitted."""
    progress = Progress(RUN, config(fleet={"max_attempts": 1}, evaluation={"before": False, "after": True}))
    assert "GroupAdmitted" in kinds(run_of_drops(progress, 3, "failed", completed=False))

    last = next(iter(progress.groups))
    for episode, origin_ in [each for each in progress.open_training.items() if each[1].group == last]:
        told(progress, failed(EpisodeOpened.model_construct(episode=episode, origin=origin_, shard=0)))
    words = f"stopped: the last 4 groups failed: {last}-1-0: not_started: No module named 'x'"
    assert told(progress, dropped(last, "failed")) == [TrainingEndRequested(run=RUN, reason=words, train_rest=False)]

    said = told(progress, task("e1", evaluation="after"), TrainingEnded(run=RUN, step=0, weights_version=0))
    assert "EvaluationEnded" not in kinds(said) and said[-1] == RunEnded(run=RUN, reason=words, steps=0)


def test_a_run_that_never_takes_a_step_stops_and_says_so():
    """Rewards that are all 0, 20 * groups_per_step groups long: there would be no end of it."""
    progress = Progress(RUN, config(algorithm={"stop_after_dropped_groups": 6}))
    assert "GroupAdmitted" in kinds(run_of_drops(progress, 5, "zero_variance", completed=True, reward=0.0))

    said = run_of_drops(progress, 1, "zero_variance", completed=True, reward=0.0)
    assert [type(event) for event in said] == [TrainingEndRequested] and not said[0].train_rest
    assert said[0].reason.startswith("stopped: the last 6 groups were dropped without a step (6 zero_variance)")


STEP = StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=(), metrics={})
LINE = TrainerStarted(run=RUN, line=1, step=0, weights_version=0)


@pytest.mark.parametrize(("steps", "reward"), [(1, 0.5), (0, 1.0)])
def test_a_run_with_nothing_left_to_learn_ends_well(steps, reward):
    """It took a step before, or all is solved from the start: what runs is finished, then the rest trained, the round held."""
    limit = {"stop_after_dropped_groups": 6}
    progress = Progress(RUN, config(algorithm=limit, evaluation={"before": False, "after": True}))
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
    progress = Progress(RUN, config(algorithm={"stop_after_dropped_groups": 6}))
    told(progress, LINE, STEP)
    run_of_drops(progress, 6, "zero_variance", completed=True)
    assert progress.num_unfinished >= 2 and decide(progress) == []

    step = StepTaken(run=RUN, step=2, line=1, weights_version=2, groups=tuple(progress.groups)[:2], metrics={})
    assert "GroupAdmitted" in kinds(told(progress, step))


@pytest.mark.parametrize("reason", ["failed", "stale"])
def test_groups_lost_for_other_reasons_are_no_success_even_after_a_step(reason):
    """Agents that fail now and then, or samples that always come too late: the run did not end because all was learned."""
    progress = Progress(RUN, config(algorithm={"stop_after_dropped_groups": 6, "stop_after_failed_groups": 99}))
    told(progress, LINE, STEP)

    said = run_of_drops(progress, 6, reason, completed=True)
    assert [type(event) for event in said] == [TrainingEndRequested] and not said[0].train_rest
    assert f"6 {reason}" in said[0].reason


def test_a_success_or_a_step_starts_the_count_of_failures_again():
    """One completed episode shows that agents can work at all; a step, that the run comes on. Repeats change nothing."""
    progress = Progress(RUN, config(fleet={"max_attempts": 1}))
    run_of_drops(progress, 3, "failed", completed=False)
    [episode, origin_] = next(iter(progress.open_training.items()))
    success = ended(EpisodeOpened.model_construct(episode=episode, origin=origin_, shard=0))
    assert "TrainingEndRequested" not in kinds(told(progress, success, dropped(origin_.group, "failed")))
    run_of_drops(progress, 2, "failed", completed=False)
    assert "TrainingEndRequested" not in kinds(told(progress, success, success))
    assert kinds(run_of_drops(progress, 1, "failed", completed=False)) == ["TrainingEndRequested"]

    stepping = Progress(RUN, config(fleet={"max_attempts": 1}))
    run_of_drops(stepping, 3, "failed", completed=False)
    told(stepping, StepTaken(run=RUN, step=1, line=1, weights_version=1, groups=(), metrics={}))
    assert "TrainingEndRequested" not in kinds(run_of_drops(stepping, 3, "failed", completed=False))


def test_a_trainer_that_cannot_go_on_ends_the_run_with_its_words():
    """It says TrainingEnded with what failed; whether its wish to stop is heard before or after that changes nothing."""
    for stop in ([], [RunStopRequested(run=RUN, reason="trainer: no such model")]):
        progress = Progress(RUN, config(evaluation={"before": False, "after": True}))
        told(progress, task("t1"), task("e1", evaluation="after"), TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
        over = TrainingEnded(run=RUN, step=2, weights_version=5, failure="trainer: no such model")

        last = told(progress, over, *stop)
        assert kinds(last) == ["EpisodeEnded", "EpisodeEnded", "GroupDropped", "RunEnded"]
        assert last[-1] == RunEnded(run=RUN, reason="trainer: no such model", steps=2)


def test_long_task_ids_give_ids_that_fit_a_subject_token():
    """A task id of 128 characters is cut and told apart by a digest."""
    one, two = "x" * 128, "x" * 127 + "y"

    assert group_id(one) != group_id(two)
    assert len(episode_id(group_id(one), 999, 9)) <= 128


def test_a_closed_group_opens_no_further_attempt():
    """The trainer gave the group up; a member that fails later is not tried again."""
    progress = Progress(RUN, config())
    first = told(progress, task("t1"))[1]
    told(progress, GroupDropped(run=RUN, group="g-t1", reason="failed"))

    assert told(progress, ended(first, EpisodeStatus.AGENT_FAILED)) == []
    assert told(progress, EpisodeEnded(run=RUN, episode="x", shard=0, origin=origin("g-no"), status="deadline")) == []


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    num_tasks=st.integers(0, 14),
    num_held_out=st.integers(0, 3),
    failing=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    stops=st.booleans(),
    most_dropped=st.sampled_from([None, 2]),
)
def test_every_run_ends_in_order_whatever_dies(seed, num_tasks, num_held_out, failing, stops, most_dropped):
    """Scheduler and trainer die anywhere, events come twice: the bound holds, the run ends, the ledger balances at 0."""
    World(Random(seed), num_tasks, num_held_out, failing, stops, most_dropped).play()


class World:
    """Scheduler, agents and trainer over one journal; a random source decides who acts next and who dies."""

    def __init__(
        self, rng: Random, num_tasks: int, num_held_out: int, failing: float, stops: bool, most_dropped: int | None
    ) -> None:
        self.rng, self.stops = rng, stops
        algorithm = {"stop_after_dropped_groups": most_dropped}
        self.config = config(evaluation={"before": True, "after": True}, fleet={"max_attempts": 2}, algorithm=algorithm)
        self.journal = Journal()
        self.agents = Agents(self.config, rng, failing=failing)
        self.trainer = Trainer(self.config, rng)
        self.progress = Progress(RUN, self.config)
        self.fed = self.heard = 0
        self.stop: RunStopRequested | None = None
        for name in ("before", "after"):
            self.say(*tasks(f"{name}-", num_held_out, evaluation=name))
        self.say(*tasks("t", num_tasks), TasksEnded(run=RUN))

    def say(self, *events: Event) -> None:
        for event in events:
            self.journal.say(event)

    def play(self) -> None:
        for _ in range(5000):
            self.feed()
            if self.progress.ended is not None:
                break
            actor = self.rng.choice([self.agents_act, self.agents_act, self.trainer_acts, self.scheduler_acts, self.trouble])
            actor()
        assert self.progress.ended is not None, "the run hangs"
        ledger = Ledger.of(self.journal.events)
        assert ledger.balanced and not ledger.gaps, ledger
        assert ledger.tokens.in_flight == ledger.episodes.in_flight == 0
        assert len(self.journal.of(RunEnded)) == 1
        opened = self.journal.of(EpisodeOpened)
        assert {e.episode for e in opened} == {e.episode for e in self.journal.of(EpisodeEnded)}

    def feed(self) -> None:
        for event in self.journal.events[self.fed :]:
            self.agents.feed(event)
            self.trainer.feed(event)
        self.fed = len(self.journal.events)

    def agents_act(self) -> None:
        self.say(*self.agents.due())

    def trainer_acts(self) -> None:
        self.say(*self.trainer.due())

    def scheduler_acts(self) -> None:
        """Hear some events, then say a part of what is due: dying in between is being interrupted here."""
        for _ in range(self.rng.randint(1, 20)):
            if self.heard < len(self.journal.events):
                self.progress.apply(self.journal.events[self.heard])
                self.heard += 1
        if self.heard and self.rng.random() < 0.2:
            self.progress.apply(self.rng.choice(self.journal.events[: self.heard]))  # delivered again
        due = decide(self.progress)
        assert due == decide(self.progress)  # looking changes nothing
        if self.waits_for_samples(due):
            return
        for event in due[: self.rng.randint(1, 20)]:
            self.journal.say(event)
            self.progress.apply(event)
            self.check_bound()

    def waits_for_samples(self, due: list[Event]) -> bool:
        """As the conductor does: the last step is asked for only when the journal holds all samples."""
        last = any(isinstance(e, TrainingEndRequested) and e.train_rest for e in due)
        return last and len(self.journal.of(SamplesReady)) < len(
            [e for e in self.journal.of(EpisodeEnded) if not e.origin.evaluation]
        )

    def check_bound(self) -> None:
        admitted = [e for e in self.journal.of(GroupAdmitted) if e.evaluation is None]
        dropped = {e.group for e in self.journal.of(GroupDropped)}
        steps = max([e.step for e in self.journal.of(StepTaken)], default=0)
        algorithm = self.config.algorithm
        most = (steps + 1 + algorithm.max_staleness) * algorithm.groups_per_step
        assert len(admitted) - len(dropped) <= most
        if admitted and self.journal.events[-1] is admitted[-1]:
            assert self.progress.admitted - self.progress.dropped <= admission_bound(self.progress)

    def trouble(self) -> None:
        """The scheduler dies and folds again, the trainer loses its line, or somebody asks for a stop."""
        what = self.rng.randint(0, 20)
        if what == 0:
            self.progress = Progress(RUN, self.config)
            for event in self.journal.events:
                self.progress.apply(event)
            self.heard = self.rng.randint(0, len(self.journal.events))  # unacknowledged ones come again
            if self.stop is not None:
                self.progress.apply(self.stop)
        elif what == 1 and not self.trainer.ended:
            self.trainer.crash()
        elif what == 2 and self.stops:
            self.stop = RunStopRequested(run=RUN)
            self.progress.apply(self.stop)
