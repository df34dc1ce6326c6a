"""The progress of one run: a fold over its events, and the input of ``decisions.next_events``. Pure.

Always true: applying an event that was applied before changes nothing, so the journal may be folded again and the queue
may deliver again. Each event costs O(1): nothing here walks over all groups (a run may have 100,000 episodes).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import (
    BatchReady,
    EpisodeEnded,
    EpisodeEvaluated,
    EpisodeOpened,
    EpisodeOrigin,
    EpisodeStatus,
    EvaluationEnded,
    Event,
    GroupAdmitted,
    GroupDropped,
    GroupTrained,
    ResumeRequested,
    RoleReleased,
    RoleTaken,
    RolledBack,
    RunEnded,
    RunHeld,
    RunStopRequested,
    Service,
    StepsCommitted,
    StepTaken,
    TasksEnded,
    TaskSubmitted,
    TrainerClaimed,
    TrainerStarted,
    TrainingEnded,
    TrainingEndRequested,
    is_final,
)
from seamlessflow_scheduler.placement.affinity import CallStatistics

from .evaluation_round import BEFORE, ROUNDS, EvaluationRound
from .failed_groups import FailureStreak
from .length_estimate import LengthEstimator
from .open_group import OpenGroup, episode_id
from .step_chain import StepChain


class RunProgress:
    """State of one run. Feed it events with ``apply``; read the rest."""

    def __init__(self, run: str, config: RunConfig) -> None:
        self.run, self.config = run, config
        self.waiting: dict[str, TaskSubmitted] = {}
        """Training tasks that are not admitted, as submitted."""
        self.rounds = {name: EvaluationRound(name) for name in ROUNDS}
        self.groups: dict[str, OpenGroup] = {}
        self.open_training: dict[str, EpisodeOrigin] = {}
        self.open_evaluation: dict[str, EpisodeOrigin] = {}
        self.owed: dict[str, EpisodeOrigin] = {}
        """Attempts that are to be opened: members of an admitted group, and attempts after a failed one."""
        self.owed_long: dict[str, EpisodeOrigin] = {}
        """Those of long groups, which are opened before the others; kept apart so that they need no search."""
        self.bucket_loads = [0] * config.fleet.buckets
        """Unfinished groups of each affinity bucket, evaluation included."""
        self.long_loads = [0] * config.fleet.buckets
        """Of those, the ones that should be long."""
        self.admitted = self.dropped = 0
        """Training groups, over the whole run. Those whose training was taken back by a rollback count as dropped."""
        self.num_unfinished = 0
        """Open training groups of which some member is not final."""
        self.num_ignored = 0
        """Tasks of a round that this run does not hold."""
        self.history = CommitHistory(is_ordered=False)
        self.steps = StepChain()
        self.failures = FailureStreak()
        self.lengths = LengthEstimator(config.fleet.long_tail)
        self.calls = CallStatistics()
        self.tasks_ended = False
        self.stop: RunStopRequested | None = None
        self.end_requested: TrainingEndRequested | None = None
        self.training_ended: TrainingEnded | None = None
        self.ended: RunEnded | None = None
        self.taken_epochs: dict[tuple[str, str], int] = {}
        self.released_epochs: dict[tuple[str, str], int] = {}
        """(node, service) to the newest epoch under which it took, and released, the device."""
        self._gangs_obeyed: dict[str, tuple[int, int, int]] = {}
        """By node: the newest lease that its trainer took up, the step from which on it counts, and the lease before."""
        self._seen: set[str] = set()
        self._num_training_groups = 0

    def apply(self, event: Event, at: float = 0.0) -> bool:
        """Take in one event; ``at`` is when it was stored (Unix seconds). Events of no interest change nothing.

        False: it counts for nothing, as its publisher had no claim on the run any more.
        """
        if not self.history.accepts(event):
            return False
        self.dropped += len(self.history.apply(event, at))
        handler = _APPLY.get(type(event))
        if handler is not None:
            handler(self, event, at)
        return True

    @property
    def is_held(self) -> bool:
        """Whether the run waits for a person: nothing is admitted, and no node is held."""
        return self.history.held is not None

    @property
    def committed_step(self) -> int:
        """The step of the newest checkpoint that counts."""
        newest = self.history.newest
        return 0 if newest is None else newest.step

    @property
    def is_joining(self) -> bool:
        """Whether a trainer claimed the run, and did not begin its line yet."""
        claim = self.history.claim
        return claim is not None and not claim.closes and claim.line > (self.steps.line or 0)

    @property
    def potential(self) -> int:
        """Open training groups that no step of the living line has used: what further batches can be made of."""
        return self._num_training_groups - len(self.steps.in_step)

    @property
    def groups_ready(self) -> int:
        """Finished training groups that no step of the living line has used."""
        return max(0, self.potential - self.num_unfinished)

    @property
    def settled_epochs(self) -> dict[str, int]:
        """By node: the newest lease that its trainer obeys, once no step that began under an older one is in progress."""
        step = self.steps.step
        return {node: epoch if step >= since else before for node, (epoch, since, before) in self._gangs_obeyed.items()}

    @property
    def wants_train(self) -> bool:
        """A batch waits for the device."""
        return self.training_ended is None and self.ended is None and self.steps.batch_waits

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends early: on request, given up by the scheduler, or because the trainer cannot go on."""
        gave_up = self.end_requested is not None and not self.end_requested.train_rest
        failed = self.training_ended is not None and self.training_ended.failure != ""
        return self.stop is not None or gave_up or failed

    def owes(self, episode: str) -> bool:
        """Whether an attempt is to be opened."""
        return episode in self.owed or episode in self.owed_long

    def holders(self) -> dict[str, tuple[int, str]]:
        """By node: the service whose newest RoleTaken is not followed by RoleReleased, and its epoch.

        Of several it is the last to take it: the lock has one holder, so the others released it or died before publishing that.
        """
        found: dict[str, tuple[int, str]] = {}
        for (node, service), epoch in self.taken_epochs.items():
            if epoch > self.released_epochs.get((node, service), -1):
                found[node] = max(found.get(node, (-1, "")), (epoch, service))
        return found

    def holds_round(self, name: str) -> bool:
        """Whether the run document asks for this evaluation round."""
        return self.config.evaluation.before if name == BEFORE else self.config.evaluation.after

    def refusal(self, task: TaskSubmitted) -> str | None:
        """Why a task cannot be done at all, for its author; None when it can (or was seen before)."""
        if task.task in self._seen:
            return None
        if self.config.agent(task.env) is None:
            return f"task {task.task}: no agent of run {self.run} has env {task.env!r}; it has {', '.join(self.config.envs)}"
        if task.evaluation not in (None, *ROUNDS):
            return f"task {task.task}: evaluation is {task.evaluation!r}; expected nothing, 'before' or 'after'"
        if task.evaluation is not None and self.holds_round(task.evaluation) and self.rounds[task.evaluation].over:
            return f"task {task.task}: evaluation round {task.evaluation!r} is over"
        return None

    def _on_task_submitted(self, event: TaskSubmitted, at: float) -> None:
        if event.task in self._seen or self.refusal(event) is not None:
            return
        self._seen.add(event.task)
        if event.evaluation is None:
            self.waiting[event.task] = event
        elif self.holds_round(event.evaluation):
            self.rounds[event.evaluation].waiting[event.task] = event
        else:
            self.num_ignored += 1

    def _on_group_admitted(self, event: GroupAdmitted, at: float) -> None:
        if event.evaluation is None:
            task = self.waiting.pop(event.task, None)
        else:
            task = self.rounds[event.evaluation].admit(event.task, at)
        if task is None:
            return
        if event.evaluation is None:
            self.rounds[BEFORE].close()  # training has begun
            self.admitted += 1
            self.num_unfinished += 1
            self._num_training_groups += 1
        attempts, final = [0] * event.num_episodes, [False] * event.num_episodes
        group = OpenGroup(
            task, event.evaluation, attempts, final, event.bucket, expected_tokens=event.expected_tokens, is_long=event.long
        )
        self.groups[event.group] = group
        self._load(group, 1)
        for index in range(event.num_episodes):
            self._owe(event.group, index, 0)

    def _owe(self, name: str, index: int, attempt: int) -> None:
        group = self.groups[name]
        group.attempts[index] = attempt
        owed = self.owed_long if group.is_long and self.config.has_classes else self.owed
        owed[episode_id(name, index, attempt)] = EpisodeOrigin(
            group=name, task=group.task.task, env=group.task.env, index=index, attempt=attempt, evaluation=group.evaluation
        )

    def _on_episode_opened(self, event: EpisodeOpened, at: float) -> None:
        if self.owed.pop(event.episode, None) is None and self.owed_long.pop(event.episode, None) is None:
            return
        if event.origin.evaluation is None:
            self.open_training[event.episode] = event.origin
        else:
            self.open_evaluation[event.episode] = event.origin
            self.rounds[event.origin.evaluation].unevaluated.add(event.episode)

    def _on_episode_ended(self, event: EpisodeEnded, at: float) -> None:
        self._measure(event)
        is_news = self._attempt_over(event.episode, event.origin, event.status)
        if is_news and event.origin.evaluation is None:
            if event.status is EpisodeStatus.COMPLETED:
                self.groups[event.origin.group].reward = event.reward
                self.failures.episode_completed()
            elif event.status is not EpisodeStatus.RUN_ENDED:
                self.failures.episode_failed(event)

    def _measure(self, event: EpisodeEnded) -> None:
        origin = event.origin
        group, attempt = self.groups.get(origin.group), (origin.index, origin.attempt)
        if group is not None and attempt not in group.measured:
            group.measured.add(attempt)
            self.lengths.ended(group.task, event)
            self.calls.ended(event)

    def _on_episode_evaluated(self, event: EpisodeEvaluated, at: float) -> None:
        self._attempt_over(event.episode, event.origin, event.status)  # where EpisodeEnded is still on its way
        if event.origin.evaluation is not None:
            final = is_final(event.status, event.origin.attempt, self.config.fleet.max_attempts)
            self.rounds[event.origin.evaluation].evaluated(event, final=final, at=at)

    def _attempt_over(self, episode: str, origin: EpisodeOrigin, status: EpisodeStatus) -> bool:
        """End an attempt. False: it was known, or is no longer awaited."""
        for episodes in (self.open_training, self.open_evaluation, self.owed, self.owed_long):
            episodes.pop(episode, None)
        group = self.groups.get(origin.group)
        if group is None or group.final[origin.index] or group.attempts[origin.index] != origin.attempt:
            return False
        if not is_final(status, origin.attempt, self.config.fleet.max_attempts):
            self._owe(origin.group, origin.index, origin.attempt + 1)
            return True
        group.final[origin.index] = True
        self.num_unfinished -= group.evaluation is None and group.is_finished
        self._load(group, -group.is_finished)
        return True

    def _on_group_trained(self, event: GroupTrained, at: float) -> None:
        self._close_group(event.group)

    def _on_steps_committed(self, event: StepsCommitted, at: float) -> None:
        self.steps.committed(event)
        for group in event.account:
            self._close_group(group.group)

    def _on_group_dropped(self, event: GroupDropped, at: float) -> None:
        group = self.groups.get(event.group)
        if group is not None and self._close_group(event.group):
            self.dropped += 1
            self.failures.group_dropped(event.reason, group.reward)

    def _close_group(self, name: str) -> bool:
        """Forget a training group; False when it is not open. Members that still run are ended by the end of the run."""
        group = self.groups.get(name)
        if group is None or group.evaluation is not None:
            return False
        self._forget_group(name)
        self.steps.in_step.discard(name)
        self._num_training_groups -= 1
        self.num_unfinished -= not group.is_finished
        for index, attempt in enumerate(group.attempts):
            for owed in (self.owed, self.owed_long):
                owed.pop(episode_id(name, index, attempt), None)
        return True

    def _on_evaluation_ended(self, event: EvaluationEnded, at: float) -> None:
        if event.round in self.rounds:
            self.rounds[event.round].close()
            for name in [name for name, group in self.groups.items() if group.evaluation == event.round]:
                self._forget_group(name)

    def _forget_group(self, name: str) -> None:
        group = self.groups.pop(name)
        self._load(group, -(not group.is_finished))

    def _load(self, group: OpenGroup, count: int) -> None:
        self.bucket_loads[group.bucket] += count
        self.long_loads[group.bucket] += count * group.is_long

    def _on_step_taken(self, event: StepTaken, at: float) -> None:
        before = self.steps.step
        self.steps.taken(event, still_open=self.groups.keys())
        if self.steps.step > before:
            self.failures.step_taken()

    def _on_role_taken(self, event: RoleTaken, at: float) -> None:
        key = (event.node, event.service)
        if event.service == Service.TRAINER and event.epoch > self.taken_epochs.get(key, -1):
            before = self.settled_epochs.get(event.node, -1)
            self._gangs_obeyed[event.node] = event.epoch, self.steps.step + self.steps.batch_waits, before
        self.taken_epochs[key] = max(event.epoch, self.taken_epochs.get(key, -1))

    def _on_role_released(self, event: RoleReleased, at: float) -> None:
        key = (event.node, event.service)
        self.released_epochs[key] = max(event.epoch, self.released_epochs.get(key, -1))

    def _on_trainer_started(self, event: TrainerStarted, at: float) -> None:
        before = self.steps.line
        self.steps.line_began(event)
        if self.steps.line != before:  # a step in progress died with its trainer
            self._gangs_obeyed = {node: (epoch, 0, epoch) for node, (epoch, _, _) in self._gangs_obeyed.items()}

    def _on_tasks_ended(self, event: TasksEnded, at: float) -> None:
        self.tasks_ended = True

    def _on_run_stop_requested(self, event: RunStopRequested, at: float) -> None:
        self.stop = self.stop or event

    def _on_training_end_requested(self, event: TrainingEndRequested, at: float) -> None:
        self.end_requested = self.end_requested or event

    def _on_training_ended(self, event: TrainingEnded, at: float) -> None:
        self.training_ended = self.training_ended or event

    def _on_run_ended(self, event: RunEnded, at: float) -> None:
        self.ended = self.ended or event


_APPLY: dict[type[Event], Callable[[RunProgress, Any, float], None]] = {
    TaskSubmitted: RunProgress._on_task_submitted,
    TasksEnded: RunProgress._on_tasks_ended,
    GroupAdmitted: RunProgress._on_group_admitted,
    EpisodeOpened: RunProgress._on_episode_opened,
    EpisodeEnded: RunProgress._on_episode_ended,
    EpisodeEvaluated: RunProgress._on_episode_evaluated,
    EvaluationEnded: RunProgress._on_evaluation_ended,
    GroupTrained: RunProgress._on_group_trained,
    GroupDropped: RunProgress._on_group_dropped,
    TrainerStarted: RunProgress._on_trainer_started,
    BatchReady: lambda progress, event, at: progress.steps.batch_ready(event),
    StepTaken: RunProgress._on_step_taken,
    StepsCommitted: RunProgress._on_steps_committed,
    TrainingEnded: RunProgress._on_training_ended,
    TrainingEndRequested: RunProgress._on_training_end_requested,
    RunStopRequested: RunProgress._on_run_stop_requested,
    RunEnded: RunProgress._on_run_ended,
    RoleTaken: RunProgress._on_role_taken,
    RoleReleased: RunProgress._on_role_released,
}
FOLDED: tuple[type[Event], ...] = (*_APPLY, TrainerClaimed, RolledBack, RunHeld, ResumeRequested)
"""Events that change a run's progress: what is read back from the journal at start."""


def holding(runs: Iterable[RunProgress]) -> dict[str, frozenset[str]]:
    """By node: the service that has its device, for any run."""
    found: dict[str, tuple[int, str]] = {}
    for progress in runs:
        for node, holder in progress.holders().items():
            found[node] = max(found.get(node, holder), holder)
    return {node: frozenset({service}) for node, (_, service) in found.items()}
