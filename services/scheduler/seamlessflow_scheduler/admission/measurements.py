"""Costs of a run, measured while it runs: a fold over its events and the times at which they were stored. Pure.

    RoleAssigned ─▶ RoleTaken                       a hand-over, either way: its seconds
    BatchReady, RoleTaken of the lead ─▶ StepTaken  a step: its seconds times the nodes of its gang
    RoleTaken ─▶ RoleAssigned, RoleReleased         rollout: node-seconds, shared by the useful groups that were finished

Short groups are finished first, so the first batches are far shorter than those still in rollout, and one step is no measure
of a later one. Training is therefore measured per token, and the cost of a step is given for as many tokens as the measured
episodes had; so the share of training in all work is right from the first steps on.

Always true: an event that was applied before changes nothing, and events that have nothing to do with each other may come in
any order; so a new scheduler that folds the journal has the measurements of the old one. Clocks of nodes play no part.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import (
    BatchReady,
    EpisodeEnded,
    EpisodeStatus,
    Event,
    GroupAdmitted,
    GroupDropped,
    GroupTrained,
    Role,
    RoleAssigned,
    RoleReleased,
    RoleTaken,
    Service,
    StepsCommitted,
    StepTaken,
    TrainerStarted,
    is_final,
)
from seamlessflow_scheduler.policy.base import Rates

from .step_chain import StepChain

NUM_STEPS = 6
"""Newest steps over which costs are averaged: groups are finished in waves."""
NUM_HANDOVERS = 9
WORKER, TRAINER = Service.ROLLOUT_WORKER.value, Service.TRAINER.value
FULL_SHARE = 0.5
"""Of the batches that may wait. With more waiting there may be too little left to roll out, so that its cost is not used."""


@dataclass(slots=True)
class _NodeTimes:
    """Roles that a node was assigned, took and released."""

    epoch: int = -1
    role: Role | None = None
    role_epoch: int = -1
    """Of the lease that brought the role."""
    since: float = 0.0
    """When that lease was assigned."""
    came_from: Role | None = None
    """The role before this one, until the hand-over was measured."""
    taken: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By service: the newest epoch under which it took the device, and when."""
    released: dict[str, int] = field(default_factory=dict)
    gangs: dict[int, int] = field(default_factory=dict)
    """Leases under which it leads: epoch to the gang's size."""
    rolls_since: float | None = None


@dataclass(slots=True)
class _Group:
    """Members that are final, as bits."""

    num_episodes: int
    final: int = 0


@dataclass(frozen=True, slots=True)
class _Rollout:
    """Of one step's time: node-seconds, groups' worth of episodes that ended, and tokens of those that completed.

    tokens None: the runner did not report those of some episodes.
    """

    seconds: float
    groups: float
    tokens: int | None


class RunMeasurements:
    """Measurements of one run. Feed it events with ``apply``; read ``rates``."""

    def __init__(self, run: str, config: RunConfig) -> None:
        self.run, self._config = run, config
        self._nodes: dict[str, _NodeTimes] = {}
        self._known: set[str] = set()
        self._unfinished: dict[str, _Group] = {}
        self._finished: set[str] = set()
        """Open training groups all of whose members are final."""
        self._num_finished = self._num_useful = 0
        """Groups that were ever finished; those that were not dropped then."""
        self._steps = StepChain()
        self._lead: str | None = None
        self._rolled = self._rolling = self._rolling_since = 0.0
        """Node-seconds of rollout that is over; nodes that roll out; the sum of when they began."""
        self._reclaims: deque[float] = deque(maxlen=NUM_HANDOVERS)
        self._lends: deque[float] = deque(maxlen=NUM_HANDOVERS)
        self._trains: deque[tuple[float, int]] = deque(maxlen=NUM_STEPS)
        """Of each step: node-seconds and tokens."""
        self._rollouts: deque[_Rollout] = deque(maxlen=NUM_STEPS)
        self._mark = (0.0, 0.0)
        self._num_episodes = 0
        """Final attempts at members of training groups."""
        self._ended_tokens: int | None = 0
        """Of those that completed since the step before."""
        self._batch_tokens = self._batch_groups = 0
        """Of the newest batch."""
        self._last_nodes = 0
        self._is_first = False
        """The only cost known is that of the first step, which holds what went into groups that are not finished."""
        self._began: tuple[float, int] | None = None
        """Of the step in progress: when, and nodes."""
        self._step_taken_at: float | None = None
        self._group_finished_at: float | None = None
        self._waited: tuple[float, float] | None = None

    def apply(self, event: Event, at: float) -> None:
        """Take in one event; ``at`` is when it was stored (Unix seconds). Events of no interest change nothing."""
        handler = _APPLY.get(type(event))
        if handler is not None:
            handler(self, event, at)

    @property
    def rates(self) -> Rates:
        """The measured costs, for policies."""
        per_group = _ratio([(each.seconds, each.groups) for each in self._rollouts])
        tokens, per_token = self._tokens_of(self._config.algorithm.groups_per_step), _ratio(self._trains)
        return Rates(
            rollout_seconds=per_group * self._config.algorithm.groups_per_step / self._useful if per_group else None,
            train_seconds=self._train_seconds(per_token),
            step_seconds=tokens * per_token if self._began is not None and per_token is not None else None,
            step_nodes=self._began[1] if self._began is not None else self._last_nodes,
            reclaim_seconds=_median(self._reclaims),
            lend_seconds=_median(self._lends),
            step_began_at=self._began[0] if self._began is not None else None,
            step_taken_at=self._step_taken_at,
            group_finished_at=self._group_finished_at,
            waited=self._waited,
        )

    def _train_seconds(self, per_token: float | None) -> float | None:
        """Of a step with as many tokens as the measured rollout had; where those are not known, the mean of the last steps."""
        if not self._trains:
            return None
        known = [each.tokens for each in self._rollouts if each.tokens is not None]
        groups = sum(each.groups for each in self._rollouts)
        if per_token is None or len(known) < len(self._rollouts) or not sum(known):
            return sum(each for each, _ in self._trains) / len(self._trains)
        return per_token * sum(known) / groups * self._config.algorithm.groups_per_step

    @property
    def _useful(self) -> float:
        """Share of the finished groups that are not dropped."""
        return self._num_useful / self._num_finished if self._num_useful > 0 else 1.0

    def _on_role_assigned(self, event: RoleAssigned, at: float) -> None:
        node = self._nodes.setdefault(event.node, _NodeTimes())
        if event.epoch <= node.epoch:
            return
        if event.role is not node.role:
            node.came_from, node.role, node.role_epoch, node.since = node.role, event.role, event.epoch, at
        node.epoch = event.epoch
        if event.role is Role.TRAIN and (not event.gang or event.gang[0] == event.node):
            node.gangs[event.epoch] = max(1, len(event.gang))
        if event.role is not Role.ROLLOUT:
            self._rolls_no_more(node, at)
        self._obeyed(node, event.node)

    def _on_role_taken(self, event: RoleTaken, at: float) -> None:
        node = self._nodes.setdefault(event.node, _NodeTimes())
        if event.epoch > node.taken.get(event.service, (-1, 0.0))[0]:
            node.taken[event.service] = event.epoch, at
            self._obeyed(node, event.node)

    def _on_role_released(self, event: RoleReleased, at: float) -> None:
        node = self._nodes.setdefault(event.node, _NodeTimes())
        node.released[event.service] = max(event.epoch, node.released.get(event.service, -1))
        if event.service == WORKER and event.epoch > node.taken.get(WORKER, (-1, 0.0))[0]:
            self._rolls_no_more(node, at)

    def _obeyed(self, node: _NodeTimes, name: str) -> None:
        """Measure a hand-over once RoleAssigned and RoleTaken are both there; they may be stored in either order."""
        service = {Role.ROLLOUT: WORKER, Role.TRAIN: TRAINER}.get(node.role or Role.IDLE, "")
        epoch, taken_at = node.taken.get(service, (-1, 0.0))
        if epoch < max(node.role_epoch, 0) or node.released.get(service, -1) >= epoch:
            return
        at = max(taken_at, node.since)
        if (node.came_from, node.role) in ((Role.ROLLOUT, Role.TRAIN), (Role.TRAIN, Role.ROLLOUT)):
            (self._reclaims if node.role is Role.TRAIN else self._lends).append(at - node.since)
        node.came_from = None
        if service == WORKER:
            self._rolls(node, at)
        elif epoch in node.gangs:
            self._lead = name
            node.gangs = {each: size for each, size in node.gangs.items() if each >= epoch}
            self._begin(at)

    def _rolls(self, node: _NodeTimes, at: float) -> None:
        if node.rolls_since is None:
            node.rolls_since = at
            self._rolling += 1
            self._rolling_since += at

    def _rolls_no_more(self, node: _NodeTimes, at: float) -> None:
        if node.rolls_since is not None:
            self._rolled += max(0.0, at - node.rolls_since)
            self._rolling -= 1
            self._rolling_since -= node.rolls_since
            node.rolls_since = None

    def _begin(self, at: float) -> None:
        """A step begins when its batch is ready and the lead has its device, whichever comes later."""
        lead = self._nodes[self._lead] if self._lead is not None else None
        if self._began is None and lead is not None and self._steps.batch_waits and lead.role is Role.TRAIN:
            size = lead.gangs.get(lead.taken.get(TRAINER, (-1, 0.0))[0])
            if size is not None:
                self._began = at, size

    def _tokens_of(self, num_groups: int) -> int:
        """Tokens of so many groups like those that the newest step began with: it may have begun before its batch was whole."""
        return round(self._batch_tokens * max(num_groups, self._batch_groups) / max(1, self._batch_groups))

    def _on_batch_ready(self, event: BatchReady, at: float) -> None:
        before = self._steps.batch_step, self._steps.line
        self._steps.batch_ready(event)
        if event.step == self._steps.batch_step:
            self._batch_tokens, self._batch_groups = event.num_tokens, event.num_groups
        if (self._steps.batch_step, self._steps.line) != before:
            self._begin(at)

    def _on_step_taken(self, event: StepTaken, at: float) -> None:
        before = self._steps.step, self._steps.line
        self._steps.taken(event, still_open=self._finished)
        if (self._steps.step, self._steps.line) == before:
            return
        if self._began is not None:
            began_at, size = self._began
            self._trains.append((max(0.0, at - began_at) * size, self._tokens_of(len(event.groups))))
            self._last_nodes = size
        self._began, self._step_taken_at = None, at
        waits = (len(self._finished) - len(self._steps.in_step)) / self._config.algorithm.groups_per_step
        self._waited = (waits, self._waited[0] if self._waited is not None else math.inf)
        self._measure_rollout(at, waits)

    def _measure_rollout(self, at: float, waits: float) -> None:
        """Measure the rollout since the step before; not where rollout may have stood at the staleness bound."""
        rolled = self._rolled + self._rolling * at - self._rolling_since
        done = self._num_episodes / self._config.algorithm.group_size
        seconds, groups = max(0.0, rolled - self._mark[0]), done - self._mark[1]
        tokens, self._ended_tokens, self._mark = self._ended_tokens, 0, (rolled, done)
        is_full = waits > FULL_SHARE * self._config.algorithm.max_staleness
        if groups > 0 and (not is_full or not self._rollouts):
            is_second, self._is_first = self._is_first, not self._rollouts
            if is_second:
                self._rollouts.clear()
            self._rollouts.append(_Rollout(seconds, groups, tokens))

    def _on_trainer_started(self, event: TrainerStarted, at: float) -> None:
        before = self._steps.line
        self._steps.line_began(event)
        if self._steps.line != before:
            self._began = None

    def _on_group_admitted(self, event: GroupAdmitted, at: float) -> None:
        if event.evaluation is None and event.group not in self._known:
            self._known.add(event.group)
            self._unfinished[event.group] = _Group(event.num_episodes)

    def _on_episode_ended(self, event: EpisodeEnded, at: float) -> None:
        group = self._unfinished.get(event.origin.group)
        if group is None or not is_final(event.status, event.origin.attempt, self._config.fleet.max_attempts):
            return
        if not group.final >> event.origin.index & 1:
            self._num_episodes += 1
            self._count_tokens(event)
        group.final |= 1 << event.origin.index
        if group.final == (1 << group.num_episodes) - 1:
            del self._unfinished[event.origin.group]
            self._finished.add(event.origin.group)
            self._num_finished += 1
            self._num_useful += 1
            self._group_finished_at = max(at, self._group_finished_at or at)

    def _count_tokens(self, event: EpisodeEnded) -> None:
        """Of a completed attempt: tokens of others are not trained on."""
        if event.status is EpisodeStatus.COMPLETED:
            known = self._ended_tokens is not None and event.sampled_tokens is not None
            self._ended_tokens = (self._ended_tokens or 0) + (event.sampled_tokens or 0) if known else None

    def _on_group_dropped(self, event: GroupDropped, at: float) -> None:
        if event.group in self._finished:
            self._num_useful -= 1
        self._close(event.group)

    def _close(self, group: str) -> None:
        self._known.add(group)
        self._unfinished.pop(group, None)
        self._finished.discard(group)
        self._steps.in_step.discard(group)


def _ratio(measured: Sequence[tuple[float, float]]) -> float | None:
    """Of the sums."""
    number = sum(each for _, each in measured)
    return sum(seconds for seconds, _ in measured) / number if number > 0 else None


def _median(measured: deque[float]) -> float | None:
    return median(measured) if measured else None


_APPLY: dict[type[Event], Callable[[RunMeasurements, Any, float], None]] = {
    RoleAssigned: RunMeasurements._on_role_assigned,
    RoleTaken: RunMeasurements._on_role_taken,
    RoleReleased: RunMeasurements._on_role_released,
    GroupAdmitted: RunMeasurements._on_group_admitted,
    EpisodeEnded: RunMeasurements._on_episode_ended,
    GroupTrained: lambda measurements, event, at: measurements._close(event.group),
    GroupDropped: RunMeasurements._on_group_dropped,
    TrainerStarted: RunMeasurements._on_trainer_started,
    BatchReady: RunMeasurements._on_batch_ready,
    StepTaken: RunMeasurements._on_step_taken,
    StepsCommitted: lambda measurements, event, at: measurements._steps.committed(event),
}
MEASURED: tuple[type[Event], ...] = tuple(_APPLY)
"""Events that are measured: what is read back from the journal at start."""
