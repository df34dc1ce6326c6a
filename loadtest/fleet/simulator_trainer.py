"""The run's trainer in virtual time: groups become batches, batches become steps, steps become weights. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Protocol

from seamlessflow.contracts import (
    BatchReady,
    DropReason,
    Event,
    GroupDropped,
    GroupTrained,
    StepsCommitted,
    StepTaken,
    TrainerStarted,
)

from .cost import Cost
from .simulator_account import Account, Depths
from .simulator_clock import Clock
from .simulator_episodes import Episode
from .simulator_node import TRAINER, SimulatedNode


class Scheduler(Protocol):
    """Whom the trainer tells what it did."""

    def publish(self, event: Event) -> None: ...
    def step_taken(self, step: int) -> None: ...
    def depths(self) -> Depths: ...


@dataclass(slots=True)
class _Group:
    name: str
    number: int
    """Of all admitted ones, from 1."""
    episodes: list[Episode] = field(default_factory=list)

    @property
    def sampled(self) -> int:
        return sum(sum(each.ages.values()) for each in self.episodes)

    @property
    def versions(self) -> set[int]:
        """That sampled a token of it."""
        return {version for each in self.episodes for version in each.ages}

    @property
    def tokens(self) -> int:
        """Prompts included."""
        return sum(each.context + each.done for each in self.episodes)


class SimulatedTrainer:
    """The group with the oldest tokens first, as the real one. A step begins when its batch is ready and the lead
    holds its device under a lease to train."""

    def __init__(
        self,
        run: str,
        clock: Clock,
        account: Account,
        cost: Cost,
        scheduler: Scheduler,
        *,
        groups_per_step: int,
        group_size: int,
        max_staleness: int,
        in_order: bool,
        rollout_floor: Callable[[Episode], float],
    ) -> None:
        self._run, self._clock, self._account, self._cost, self._scheduler = run, clock, account, cost, scheduler
        self._groups_per_step, self._group_size, self._max_staleness = groups_per_step, group_size, max_staleness
        self._in_order, self._rollout_floor = in_order, rollout_floor
        self.step = 0
        self.line = 0
        self.lead: SimulatedNode | None = None
        self.gang: list[SimulatedNode] = []
        """Nodes of the step in progress."""
        self._nodes: dict[str, SimulatedNode] = {}
        self._open: dict[str, _Group] = {}
        self._ready: list[tuple[int, int, _Group]] = []
        """Heap by oldest version, then by when they were finished. In order: by when they were admitted."""
        self._num_finished = self._num_admitted = self._num_taken = 0
        self._looked_at = 0
        """Step at which groups were last looked through for stale ones."""
        self._batch: list[_Group] | None = None

    @property
    def num_ready(self) -> int:
        """Finished groups that no step used."""
        return len(self._ready) + len(self._batch or ())

    def know(self, node: SimulatedNode) -> None:
        """A node that may be named by a gang."""
        self._nodes[node.name] = node

    def starts(self, node: SimulatedNode) -> None:
        """A node's trainer process becomes the run's: a new line at the last step, all of which are committed."""
        self.lead = node
        self.line += 1
        self.gang = []
        self._scheduler.publish(TrainerStarted(run=self._run, line=self.line, step=self.step, weights_version=self.step))
        if self._batch is not None:
            self._announce(self._batch)
        else:
            self._gather()

    def admitted(self, group: str) -> None:
        self._num_admitted += 1
        self._open[group] = _Group(group, self._num_admitted)

    def ended(self, episode: Episode) -> None:
        """Samples of an episode are there."""
        name = episode.origin.group
        group = self._open[name]
        group.episodes.append(episode)
        if len(group.episodes) == self._group_size:
            del self._open[name]
            self._num_finished += 1
            place = (group.number, 0) if self._in_order else (min(group.versions), self._num_finished)
            heappush(self._ready, (*place, group))
            self._gather()

    def device_taken(self, node: SimulatedNode) -> None:
        """A node's trainer holds its device under its newest lease."""
        if node is self.lead:
            self._begin()

    def died(self, node: SimulatedNode) -> None:
        """Of a node in the gang the step is lost, and begins again without it."""
        self._nodes.pop(node.name, None)
        if node in self.gang:
            gang, self.gang = self.gang, []
            for each in gang:
                self._settle(each)
            if self.lead is not node:
                self._begin()
        if self.lead is node:
            self.lead = None

    def _gather(self) -> None:
        if not self._in_order and self._looked_at < self.step:
            self._looked_at = self.step  # only a step makes groups older
            self._drop_stale()
        if self._batch is None and self.lead is not None and self._has_batch:
            self._num_taken += self._groups_per_step
            self._batch = [heappop(self._ready)[2] for _ in range(self._groups_per_step)]
            self._announce(self._batch)

    @property
    def _has_batch(self) -> bool:
        if len(self._ready) < self._groups_per_step or not self._in_order:
            return len(self._ready) >= self._groups_per_step
        last = self._num_taken + self._groups_per_step
        return sum(number <= last for number, _, _ in self._ready) == self._groups_per_step

    def _drop_stale(self) -> None:
        """Groups all of whose tokens are too old for the next step."""
        oldest = self.step - self._max_staleness
        stale = [entry for entry in self._ready if max(entry[2].versions) < oldest]
        if stale and self._batch is None:
            self._ready = [entry for entry in self._ready if entry not in stale]
            heapify(self._ready)
            for _, _, group in stale:
                self._count_ages(group, self.step)
                self._scheduler.publish(GroupDropped(run=self._run, group=group.name, reason=DropReason.STALE))

    def _announce(self, batch: list[_Group]) -> None:
        tokens = sum(group.sampled for group in batch)
        self._scheduler.publish(
            BatchReady(run=self._run, step=self.step + 1, line=self.line, num_groups=len(batch), num_tokens=tokens)
        )
        self._begin()

    def _begin(self) -> None:
        lead = self.lead
        if lead is None or self._batch is None or self.gang or lead.holder != TRAINER or not lead.is_to_train:
            return
        assert lead.lease is not None
        named = [self._nodes.get(name) for name in lead.lease.gang]
        self.gang = [lead, *(each for each in named if each is not None and each is not lead and each.holder == TRAINER)]
        for node in self.gang:
            node.note()
        seconds = self._cost.train_seconds(sum(group.tokens for group in self._batch), len(self.gang))
        self._clock.after(seconds, self._taken, self.line, self.gang)

    def _taken(self, line: int, gang: list[SimulatedNode]) -> None:
        if gang is not self.gang or line != self.line or self._batch is None:
            return  # it was lost with a node
        batch, self._batch, self.gang = self._batch, None, []
        self.step += 1
        self._count(batch)
        names = tuple(group.name for group in batch)
        common = {"run": self._run, "step": self.step}
        self._scheduler.publish(StepTaken(line=self.line, weights_version=self.step, groups=names, metrics={}, **common))
        self._scheduler.publish(StepsCommitted(line=self.line, checkpoint=f"step-{self.step}", groups=names, **common))
        for name in names:
            self._scheduler.publish(GroupTrained(group=name, episodes=(), **common))
        for node in gang:
            self._settle(node)
        self._scheduler.step_taken(self.step)
        self._gather()

    def _settle(self, node: SimulatedNode) -> None:
        node.note()
        if not node.is_to_train:
            node.react()

    def _count(self, batch: list[_Group]) -> None:
        account = self._account
        account.step_times.append(self._clock.now)
        account.depths.append(self._scheduler.depths())
        for group in batch:
            self._count_ages(group, self.step - 1)
            account.rollout_floor += sum(self._rollout_floor(episode) for episode in group.episodes)
            account.train_floor += self._cost.train_per_token * group.tokens
            account.floor_tokens += group.sampled
        account.train_floor += self._cost.train_fixed

    def _count_ages(self, group: _Group, step: int) -> None:
        """Tokens of a group that the step after ``step`` takes, or would have taken."""
        account = self._account
        for episode in group.episodes:
            for version, count in episode.ages.items():
                account.staleness[step - version] += count
                if step - version > self._max_staleness:
                    account.masked += count
                else:
                    account.trained += count
                    account.all_trained += count
