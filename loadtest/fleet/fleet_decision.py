"""What one scheduling decision costs at a size: the scheduler's pure code, fed with a run's events, without a bus.

A decision answers an event: take it in, look at all processes, ask the policy, compare with the leases that stand, say what is
due after it. A step taken may open thousands of episodes; these are published in slices, as in the scheduler, and others get
in between, so of all slices the longest counts (what all of them took together is told apart: ``answers``). What the scheduler
reads from and writes to a bus is not in it. Where several events come before one look, the one that took longest counts. A
look that follows no event and changes nothing is none. Timed in CPU time of the thread, so that other load on the machine does
not count; the collector's work is in it, and its pauses are told apart as well. Memory is that of a process which holds nothing
but the scheduler and its run.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from seamlessflow.contracts import (
    BatchReady,
    EpisodeEnded,
    EpisodeOpened,
    EpisodeOrigin,
    EpisodeStatus,
    GroupTrained,
    Lease,
    Role,
    RoleReleased,
    RoleTaken,
    Service,
    StepsCommitted,
    StepTaken,
    TaskSubmitted,
    TrainerStarted,
)
from seamlessflow.runtime import GcControl
from seamlessflow_scheduler.placement.plan import FleetPlan
from seamlessflow_scheduler.run import SLICE

from .constants import MAX_STALENESS
from .cost import cost_of
from .simulator import RUN, Mode, Scene, config_of, node_name
from .simulator_scheduler import ENV, VirtualScheduler, status_of
from .workloads import REASONING

STEP_SECONDS = 300.0
LOOKS_A_STEP = 300
"""One a second: half as many as the scheduler's own ``tick_seconds`` brings, besides those that events cause."""
WORKER, TRAINER = Service.ROLLOUT_WORKER.value, Service.TRAINER.value


@dataclass(frozen=True, slots=True)
class Decisions:
    """``milliseconds``: of each decision; ``changing``: of those that published an event or changed a lease.

    ``megabytes``: of the whole process at the end.
    """

    nodes: int
    episodes: int
    """In flight."""
    milliseconds: list[float]
    changing: list[float]
    megabytes: float
    megabytes_before: float
    """Before the run: the interpreter and what is imported."""
    num_changes: int
    """Leases that the decisions changed."""
    answers: list[float]
    """Milliseconds of all slices after one event together, where an event was published."""
    pauses: list[float]
    """Milliseconds of each walk of the garbage collector."""

    @property
    def p99(self) -> float:
        return p99_of(self.milliseconds)

    @property
    def changing_p99(self) -> float:
        return p99_of(self.changing)

    @property
    def longest_pause(self) -> float:
        return max(self.pauses, default=0.0)

    @property
    def longest(self) -> float:
        return max(self.milliseconds)


def p99_of(values: Sequence[float]) -> float:
    """The value that all but a hundredth stay below, of at least one."""
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def measured(
    nodes: int, episodes: int, steps: int, looks: int = LOOKS_A_STEP, policy: str = "auto", *, settles: bool = True
) -> Decisions:
    """In a fresh process, so that nothing else is in its memory.

    looks: decisions in each step. settles: as the real scheduler, take what is there out of the collector's sight.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, nodes, episodes, steps, looks, policy, settles=settles).result()


def _measure(nodes: int, episodes: int, steps: int, looks: int, policy: str, *, settles: bool) -> Decisions:
    staleness = MAX_STALENESS
    groups = max(1, round(episodes / REASONING.group_size / (staleness + 1)))
    scene = Scene(nodes, REASONING, cost_of(), Mode("decision", policy, staleness, nodes), groups, steps=steps)
    gc.collect()
    before = _resident_megabytes()
    pauses = _Pauses()
    gc.callbacks.append(pauses)
    world = _World(scene, looks, settles=settles)
    for _ in range(steps):
        world.step()
    gc.callbacks.remove(pauses)
    after = _resident_megabytes()
    return Decisions(
        nodes,
        world.num_open,
        world.milliseconds,
        world.changing,
        after,
        before,
        world.num_changes,
        world.all_answers,
        pauses.milliseconds,
    )


class _Pauses:
    """Told by the collector when it begins and when it is done."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []
        self._began = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.milliseconds.append(1000 * (time.thread_time() - self._began))


class _World:
    """Nodes that obey at once, and episodes that end in the order in which they were opened."""

    def __init__(self, scene: Scene, looks: int = LOOKS_A_STEP, *, settles: bool = True) -> None:
        self._looks, self._settling = looks, GcControl() if settles else None
        self.all_answers: list[float] = []
        self.milliseconds: list[float] = []
        self.changing: list[float] = []
        self._answers: list[float] = []
        """Milliseconds of each event since the last look."""
        self._num_published = self._num_published_before = 0
        """Events that the scheduler itself published, now and at the last look."""
        self.num_open = self.num_changes = 0
        self._scene, self._now = scene, 0.0
        self._opened: list[tuple[str, int, EpisodeOrigin]] = []
        """Episode, shard and origin, which the scheduler keeps anyway: little memory of our own."""
        self._told: list[tuple[str, Lease]] = []
        self._holders: dict[str, str] = {}
        self._step = 0
        self._has_trainer = False
        self._numbers = itertools.count()
        self.scheduler = VirtualScheduler(
            RUN, config_of(scene), opened=self._on_opened, leased=self._on_lease, told=self._on_told
        )
        for number in range(scene.nodes):
            name = node_name(number)
            self.scheduler.arrives(
                status_of(name, Service.ROLLOUT_WORKER, "rollout"), status_of(name, Service.TRAINER, "train")
            )
        self._submit()
        self._look()

    def step(self) -> None:
        """One step's worth of groups ends, little by little; then the trainer takes its step."""
        algorithm = self.scheduler.config.algorithm
        size = algorithm.groups_per_step * algorithm.group_size
        batch, self._opened = self._opened[:size], self._opened[size:]
        for number, opened in enumerate(batch):
            self._now += STEP_SECONDS / size
            self._end(*opened)
            if number % max(1, size // self._looks) == 0:
                self._look()
        groups = tuple(dict.fromkeys(origin.group for _, _, origin in batch))
        common = {"run": RUN, "step": self._step + 1}
        self._publish(BatchReady(line=1, num_groups=len(groups), num_tokens=100 * size, **common))
        for _ in range(3):  # members take their devices, then the lead
            self._look()
        self._now += 10.0
        self._publish(StepTaken(line=1, weights_version=self._step + 1, groups=groups, metrics={}, **common))
        self._publish(StepsCommitted(line=1, checkpoint="c", groups=groups, **common))
        for group in groups:
            self._publish(GroupTrained(group=group, episodes=(), **common))
        self._step += 1
        self._submit()
        self._look()
        self.num_open = len(self._opened)

    def _on_opened(self, opened: EpisodeOpened) -> None:
        self._opened.append((opened.episode, opened.shard, opened.origin))

    def _end(self, episode: str, shard: int, origin: EpisodeOrigin) -> None:
        completed = EpisodeStatus.COMPLETED
        self._publish(
            EpisodeEnded(run=RUN, episode=episode, shard=shard, origin=origin, status=completed, reward=1.0, sampled_tokens=100)
        )

    def _submit(self) -> None:
        algorithm = self.scheduler.config.algorithm
        size = algorithm.groups_per_step
        first = size * (algorithm.max_staleness + 2) + 1  # a step's worth waits, so each step taken opens that at once
        tasks = [f"t{next(self._numbers)}" for _ in range(size if self._step else first)]
        for task in tasks:  # each is an event of its own
            self._publish(TaskSubmitted(run=RUN, task=task, env=ENV))

    def _publish(self, event: object) -> None:
        """Time an event; it is part of the decision that the next look completes."""
        self._num_published -= 1  # this one is applied by the scheduler, not published by it
        self._answers.append(_milliseconds(lambda: self.scheduler.hear(event, self._now)))  # type: ignore[arg-type]

    def _look(self) -> None:
        """Time a decision, then let the nodes obey what it changed."""
        self._now += 1e-3
        plans: list[FleetPlan] = []

        spent = _milliseconds(lambda: plans.append(self.scheduler.plan(self._now))) + max(self._answers, default=0.0)
        plan = plans[0]
        spent += self._say_what_is_due()
        changes = bool(plan.changes) or self._num_published > self._num_published_before
        if changes or self._answers:
            self.milliseconds.append(spent)
        if changes:
            self.changing.append(spent)
        self._answers.clear()
        self.num_changes += len(plan.changes)
        self.scheduler.write(plan, self._now)
        self._num_published_before = self._num_published
        told, self._told = self._told, []
        for name, lease in told:
            self._obey(name, lease)

    def _say_what_is_due(self) -> float:
        """Milliseconds of the longest slice."""
        slices, more = list[float](), [True]
        while more[-1]:
            slices.append(_milliseconds(lambda: more.append(self.scheduler.publish_slice(self._now, SLICE))))
        if len(slices) > 1:
            self.all_answers.append(sum(slices))
        return max(slices)

    def _on_told(self, event: object) -> None:
        self._num_published += 1
        if self._settling is not None:
            self._settling.tick()

    def _on_lease(self, name: str, lease: Lease) -> None:
        self._told.append((name, lease))

    def _obey(self, name: str, lease: Lease) -> None:
        wanted = {Role.ROLLOUT: WORKER, Role.TRAIN: TRAINER}.get(lease.role)
        held = self._holders.get(name)
        if lease.trainer and not self._has_trainer:
            self._has_trainer = True
            self._publish(TrainerStarted(run=RUN, line=1, step=0, weights_version=0))
        if held is not None and held != wanted:
            self._publish(RoleReleased(run=RUN, node=name, epoch=lease.epoch, service=held))
            del self._holders[name]
        if wanted is not None:
            self._holders[name] = wanted
            self._publish(RoleTaken(run=RUN, node=name, epoch=lease.epoch, service=wanted))


def _resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _milliseconds(work: Callable[[], None]) -> float:
    began = time.thread_time()
    work()
    return 1000 * (time.thread_time() - began)
