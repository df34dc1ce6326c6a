"""A whole run in which everybody may die anywhere: it ends in order all the same."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from seamlessflow.contracts import (
    EpisodeEnded,
    EpisodeOpened,
    Event,
    GroupAdmitted,
    GroupDropped,
    RunEnded,
    RunStopRequested,
    SamplesReady,
    StepTaken,
    TasksEnded,
    TrainingEndRequested,
)
from seamlessflow.reports.ledger import Ledger
from seamlessflow_scheduler.admission.decisions import admission_bound, next_events
from seamlessflow_scheduler.admission.run_state import RunProgress
from tests.services.scheduler.scheduler_world import RUN, Agents, Journal, Trainer, config, tasks


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
        self.progress = RunProgress(RUN, self.config)
        self.fed = self.num_applied = 0
        self.stop: RunStopRequested | None = None
        for name in ("before", "after"):
            self.publish(*tasks(f"{name}-", num_held_out, evaluation=name))
        self.publish(*tasks("t", num_tasks), TasksEnded(run=RUN))

    def publish(self, *events: Event) -> None:
        for event in events:
            self.journal.publish(event)

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
        self.publish(*self.agents.due())

    def trainer_acts(self) -> None:
        self.publish(*self.trainer.due())

    def scheduler_acts(self) -> None:
        """Apply some events, then publish a part of the due ones: a death in between is an interruption here."""
        for _ in range(self.rng.randint(1, 20)):
            if self.num_applied < len(self.journal.events):
                self.progress.apply(self.journal.events[self.num_applied])
                self.num_applied += 1
        if self.num_applied and self.rng.random() < 0.2:
            self.progress.apply(self.rng.choice(self.journal.events[: self.num_applied]))  # delivered again
        due = next_events(self.progress)
        assert due == next_events(self.progress)  # looking changes nothing
        if self.waits_for_samples(due):
            return
        for event in due[: self.rng.randint(1, 20)]:
            self.journal.publish(event)
            self.progress.apply(event)
            self.check_bound()

    def waits_for_samples(self, due: list[Event]) -> bool:
        """As the run does: the last step is asked for only when the journal holds all samples."""
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
        """The scheduler dies and folds again, the trainer loses its line, or a stop is requested."""
        what = self.rng.randint(0, 20)
        if what == 0:
            self.progress = RunProgress(RUN, self.config)
            for event in self.journal.events:
                self.progress.apply(event)
            self.num_applied = self.rng.randint(0, len(self.journal.events))  # unacknowledged ones come again
            if self.stop is not None:
                self.progress.apply(self.stop)
        elif what == 1 and not self.trainer.ended:
            self.trainer.crash()
        elif what == 2 and self.stops:
            self.stop = RunStopRequested(run=RUN)
            self.progress.apply(self.stop)
