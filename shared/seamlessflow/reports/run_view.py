"""What a run looks like from outside: a fold over its journal, for the screen, the summary and the report. Pure.

Time is the moment the server stored an event (Unix seconds); nothing here reads a clock. What a late trainer publishes after a
newer one took over is passed over: it counts in no weights.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile

from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.contracts import (
    BatchReady,
    DeadLetter,
    EpisodeEnded,
    EpisodeOpened,
    EpisodeStarted,
    EpisodeStatus,
    EvaluationEnded,
    Event,
    GroupAdmitted,
    GroupDropped,
    GroupTrained,
    Role,
    RoleAssigned,
    RoleTaken,
    RolledBack,
    RunEnded,
    RunHeld,
    RunStarted,
    SamplesReady,
    SegmentSampled,
    StepsCommitted,
    StepTaken,
    TaskSubmitted,
    TrainerClaimed,
    TrainerStarted,
    TrainingEnded,
    WeightsLoaded,
    WeightsPublished,
)
from seamlessflow.errors import BadInput
from seamlessflow.logprob_gap import GAP_ALARM, gap_warning
from seamlessflow.weights.staleness import VersionSteps

from .downtime import Lives
from .ledger import ROLLED_BACK


@dataclass
class StepRow:
    """One optimiser step."""

    step: int
    line: int
    weights_version: int
    time: float
    metrics: dict[str, float]
    ages: Counter[int] = field(default_factory=Counter)
    """Tokens of its groups by age in optimiser steps."""


@dataclass
class RunView:
    """Everything known of a run so far."""

    started: float | None = None
    last_time: float | None = None
    ended: RunEnded | None = None
    ended_at: float | None = None
    training_began: float | None = None
    training_ended: float | None = None
    steps: list[StepRow] = field(default_factory=list)
    evaluations: dict[str, EvaluationEnded] = field(default_factory=dict)
    evaluation_done: Counter[str] = field(default_factory=Counter)
    evaluation_opened: Counter[str] = field(default_factory=Counter)
    sampled_tokens: int = 0
    groups_admitted: int = 0
    groups_dropped: Counter[str] = field(default_factory=Counter)
    """By reason; ``rolled_back`` for those whose training a rollback took back."""
    committed_step: int = 0
    """Of the newest commit, or of what a rollback went back to."""
    statuses: Counter[str] = field(default_factory=Counter)
    forks: Counter[str] = field(default_factory=Counter)
    """Calls of training episodes that could not go on from the exact tokens of an earlier turn, by cause."""
    reprefilled_tokens: int = 0
    """That engines had to be fed again because of forks."""
    failures: list[str] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    roles: dict[str, tuple[Role, str]] = field(default_factory=dict)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """(time, seconds) in which an engine loaded weights while nothing was sampled."""
    fetch_seconds: float = 0.0
    weights_version: int | None = None
    weights_path: str = ""
    engine: str = ""
    """As the run file names it."""
    token_times: list[tuple[float, int]] = field(default_factory=list)
    version_steps: VersionSteps = field(default_factory=VersionSteps)
    tasks: set[str] = field(default_factory=set)
    """Ids of all tasks the journal holds."""
    lives: Lives = field(default_factory=Lives)
    _group_versions: dict[str, Counter[int]] = field(default_factory=dict)
    _episodes_running: set[str] = field(default_factory=set)
    _history: CommitHistory = field(default_factory=CommitHistory)
    _line: int = 0
    """The newest line that was claimed or started."""
    _closed: set[str] = field(default_factory=set)

    @property
    def held(self) -> RunHeld | None:
        """Why the run cannot go on before a person decides. None: it is not held."""
        return self._history.held

    @property
    def running_episodes(self) -> int:
        """How many episodes have started and not ended."""
        return len(self._episodes_running)

    @property
    def staleness(self) -> Counter[int]:
        """Tokens of trained groups by age in optimiser steps; those of abandoned steps are counted where they are trained."""
        return sum((row.ages for row in self.steps), Counter())

    @property
    def step(self) -> int:
        """The last step, 0 before the first."""
        return self.steps[-1].step if self.steps else 0

    @property
    def gap_warning(self) -> str | None:
        """The warning about the last step's logprob gap, or None."""
        if not self.steps:
            return None
        last = self.steps[-1]
        return gap_warning(last.step, last.weights_version - 1, last.metrics, self.engine)

    @property
    def num_gap_alarms(self) -> int:
        """Steps whose logprob gap was an alarm."""
        return sum(row.metrics.get(GAP_ALARM, 0.0) > 0 for row in self.steps)

    def tokens_per_second(self, window_seconds: float = 30.0) -> float:
        """Sampled tokens a second over the last window before the last event."""
        if not self.token_times or self.last_time is None:
            return 0.0
        since = max(self.last_time - window_seconds, self.token_times[0][0])
        newest_first = takewhile(lambda each: each[0] > since, reversed(self.token_times))
        recent = sum(count for _, count in newest_first)
        return recent / max(self.last_time - since, 1e-9)

    def apply(self, event: Event, time: float) -> bool:
        """Take one event in; unknown kinds only move the time. False: a late trainer's, which was passed over."""
        self.last_time = time
        self.lives.add(event, time)
        if not self._history.accepts(event):
            return False
        if isinstance(event, BatchReady | StepTaken | TrainerStarted) and event.line < self._line:
            return False
        taken_back = self._history.apply(event, time)
        if taken_back:
            self.groups_dropped[ROLLED_BACK] += len(taken_back)
        match event:
            case RunStarted():
                self.started = time
                self.engine = str(event.document.get("model", {}).get("engine", ""))
            case RunEnded():
                self.ended, self.ended_at = event, time
            case TaskSubmitted():
                self.tasks.add(event.task)
            case GroupAdmitted(evaluation=None):
                self.groups_admitted += 1
                self.training_began = self.training_began or time
            case EpisodeOpened():
                if event.origin.evaluation and event.origin.attempt == 0:
                    self.evaluation_opened[event.origin.evaluation] += 1
            case EpisodeStarted():
                self._episodes_running.add(event.episode)
            case EpisodeEnded():
                self._on_episode_ended(event)
            case SegmentSampled():
                self.sampled_tokens += len(event.token_ids)
                self.token_times.append((time, len(event.token_ids)))
            case SamplesReady():
                ages = self._group_versions.setdefault(event.origin.group, Counter())
                for sample in event.samples:
                    ages.update(dict(sample.versions))
                self.forks.update(event.fork_causes)
                self.reprefilled_tokens += event.reprefilled_tokens
            case StepTaken():
                self._on_step(event, time)
            case TrainerClaimed():
                self._line = max(self._line, event.line)
            case StepsCommitted():
                self.committed_step = event.step
                for group in event.groups:
                    self._close(group)
            case RolledBack():
                self.committed_step = event.step
                self._abandon_after(event.step)
            case TrainerStarted():
                self._line = max(self._line, event.line)
                self._abandon_after(event.step)
            case GroupTrained() if not self._history.claims:
                self._closed.add(event.group)  # its versions stay: before it is committed it may be trained again
            case GroupDropped() if event.group not in self._closed:
                self.groups_dropped[event.reason.value] += 1
                self._close(event.group)
            case EvaluationEnded():
                self.evaluations[event.round] = event
            case TrainingEnded():
                self.training_ended = time
            case WeightsPublished():
                self.weights_version, self.weights_path = event.weights_version, event.path
                self.version_steps.publish(event.weights_version, event.step)
            case WeightsLoaded():
                self.pauses.append((time, event.pause_seconds))
                self.fetch_seconds += event.fetch_seconds
            case RoleAssigned():
                self.roles[event.node] = (event.role, event.reason)
            case RoleTaken():
                self.roles[event.node] = (self.roles.get(event.node, (Role.IDLE, ""))[0], f"held by {event.service}")
            case DeadLetter():
                self.dead_letters.append(event)
        return True

    def _close(self, group: str) -> None:
        self._closed.add(group)
        self._group_versions.pop(group, None)

    def _abandon_after(self, step: int) -> None:
        self.steps = [row for row in self.steps if row.step <= step]

    def _on_episode_ended(self, event: EpisodeEnded) -> None:
        self._episodes_running.discard(event.episode)
        self.statuses[event.status.value] += 1
        if event.origin.evaluation and event.status is EpisodeStatus.COMPLETED:
            self.evaluation_done[event.origin.evaluation] += 1
        if event.status not in (EpisodeStatus.COMPLETED, EpisodeStatus.RUN_ENDED):
            self.failures.append(f"{event.episode}: {event.status.value}: {event.reason}")

    def _on_step(self, event: StepTaken, time: float) -> None:
        ages: Counter[int] = Counter()
        # Kept until they are committed: after a resume the same groups are trained again.
        for group in event.groups:
            for version, count in self._group_versions.get(group, Counter()).items():
                with suppress(BadInput):  # the trainer masks what no version explains
                    ages[self.version_steps.age(version, event.step - 1)] += count
        self.steps.append(StepRow(event.step, event.line, event.weights_version, time, dict(event.metrics), ages))
