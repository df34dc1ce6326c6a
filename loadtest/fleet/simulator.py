"""A whole run in virtual time: the scheduler's real policies and decisions, simulated nodes, agents and trainer. Deterministic.

``simulate(scene)`` gives an ``Outcome``. A scene is a fleet, a workload, a cost and a mode; the same scene gives the same
outcome.
"""

from __future__ import annotations

import math

from seamlessflow.contracts import (
    BatchReady,
    EpisodeEnded,
    EpisodeOpened,
    Event,
    GroupAdmitted,
    Lease,
    RoleReleased,
    RoleTaken,
    Service,
    StepTaken,
)
from seamlessflow.contracts.streams import unowned_bucket
from seamlessflow_rollout_worker.generations.context_budget import LOOK_SECONDS

from .constants import CONTROL_SECONDS
from .simulator_account import Account, Depths, Outcome
from .simulator_clock import Clock
from .simulator_episodes import Agents, Episode
from .simulator_losses import Effort, losses_of
from .simulator_node import SimulatedNode
from .simulator_queue import Queue
from .simulator_sampler import Sampler
from .simulator_scene import RUN, Change, Mode, Scene, config_of, node_name
from .simulator_scheduler import VirtualScheduler, status_of
from .simulator_trainer import SimulatedTrainer
from .workloads import Turn, floor_seconds, most_agents, work_of

__all__ = ["RUN", "Change", "Mode", "Outcome", "Scene", "Simulation", "config_of", "floor_seconds", "node_name", "simulate"]

STUCK_SECONDS = 20_000.0
"""Without a step for this long nothing will ever come: the scene, or the policy, is wrong."""
NOBODYS = -1
"""The bucket of what begins an episode of several calls, for the queue."""
NEWS = (BatchReady, StepTaken, RoleTaken, RoleReleased)
"""Events after which the scheduler looks at the fleet at once."""


class Simulation:
    """One run; ``run()`` once."""

    run = RUN

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.clock, self.account, self.queue = Clock(), Account(with_spans=scene.with_spans), Queue()
        self.config = config_of(scene)
        self.num_buckets = self.config.fleet.buckets
        self.partial_rollout = scene.mode.partial_rollout
        self.weights_version = 0
        self._work = work_of(scene.workload, scene.cost)
        most = most_agents(scene.workload, scene.cost, scene.nodes, scene.rolling_nodes)
        self.agents = Agents(RUN, self.clock, self.account, self._draw, self.queue.ask, self._episode_ended, self._bucket, most)
        self.scheduler = VirtualScheduler(RUN, self.config, opened=self.agents.open, leased=self._leased, told=self._told)
        self.trainer = SimulatedTrainer(
            RUN,
            self.clock,
            self.account,
            scene.cost,
            self,
            groups_per_step=scene.groups_per_step,
            group_size=scene.workload.group_size,
            max_staleness=scene.mode.max_staleness,
            in_order=scene.mode.in_order,
            rollout_floor=lambda episode: floor_seconds(self._work, episode.turns),
        )
        self.nodes: dict[str, SimulatedNode] = {}
        self._all: list[SimulatedNode] = []
        """Dead ones, too."""
        self._num_submitted = 0
        self._stepped_at = 0.0
        self._looks = False
        self._ended: set[str] = set()
        self._effort = Effort()
        """Of all engines at the end of the warm-up."""
        for number in range(scene.nodes):
            self._join(node_name(number))
        for change in scene.changes:
            self.clock.at(change.at, self._join if change.joins else self._die, change.node)

    def simulate(self) -> Outcome:
        """Until the last step."""
        self._submit()
        self.scheduler.advance(0.0)
        self._tick()
        self._forget_ended()
        self.clock.run(math.inf)
        return self._outcome()

    # -- what nodes, agents and the trainer tell ---------------------------------------------------------------------------

    def publish(self, event: Event) -> None:
        """Something happened: the scheduler hears of it."""
        self.scheduler.take_in(event, self.clock.now)
        if isinstance(event, NEWS):
            self._wake()

    def turn_done(self, episode: Episode) -> None:
        self.agents.turn_done(episode)

    def bind(self, sampler: Sampler, buckets: tuple[int, ...]) -> None:
        self.queue.bind(sampler, buckets, self.num_buckets)

    def unbind(self, sampler: Sampler) -> None:
        self.queue.unbind(sampler)

    def look(self, sampler: Sampler) -> None:
        self.queue.look(sampler)

    def give_back(self, episodes: list[Episode], after_seconds: float) -> None:
        self.account.moved += len(episodes)
        self.clock.after(after_seconds, self.queue.ask_again, episodes)

    def device_taken(self, node: SimulatedNode) -> None:
        self.trainer.device_taken(node)

    def is_stepping(self, node: SimulatedNode) -> bool:
        return node in self.trainer.gang

    def step_taken(self, step: int) -> None:
        """New weights are on their way to every node."""
        self.weights_version, self._stepped_at = step, self.clock.now
        if step == self.scene.warmup_steps:
            self._book()
            self._effort = self._all_effort()
            self.account.begin(self.clock.now)
        if step >= self.scene.steps:
            self.clock.stop()
            return
        self._submit()
        self.scheduler.advance(self.clock.now)
        self.clock.after(self.scene.cost.fetch_seconds, self._fetched)

    def depths(self) -> Depths:
        return Depths(self.clock.now, self.queue.num_waiting, self.trainer.num_ready, self.agents.num_open)

    def _book(self) -> None:
        for node in self.nodes.values():
            node.sampler.book()

    def _all_effort(self) -> Effort:
        return sum((each.sampler.effort for each in self._all), Effort())

    def _fetched(self) -> None:
        for node in self.nodes.values():
            node.sampler.new_weights()

    def _episode_ended(self, episode: Episode, event: EpisodeEnded) -> None:
        self._ended.add(episode.name)
        self.scheduler.take_in(event, self.clock.now)
        self.trainer.ended(episode)

    def _draw(self, task: str, index: int) -> tuple[Turn, ...]:
        all_tasks = self.scene.steps * self.scene.groups_per_step
        return self.scene.workload.episode(task, index, min(1.0, int(task[1:]) / all_tasks))

    def _bucket(self, opened: EpisodeOpened) -> int:
        if opened.bucket == unowned_bucket(self.num_buckets):
            return NOBODYS
        return self.config.work_tags.index(opened.tag) * self.num_buckets + opened.bucket

    # -- scheduling --------------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        """There are always enough tasks for what may be admitted."""
        ahead = self.trainer.step + 2 + self.scene.mode.max_staleness
        wanted = ahead * self.scene.groups_per_step
        tasks = (f"t{number}" for number in range(self._num_submitted, wanted))
        self.scheduler.submit(((task, self.scene.workload.question(task)) for task in tasks), self.clock.now)
        self._num_submitted = max(self._num_submitted, wanted)

    def _tick(self) -> None:
        if self.clock.now - self._stepped_at > STUCK_SECONDS:
            held = {name: each.lease for name, each in self.scheduler.leases.items() if each.lease.run is not None}
            raise RuntimeError(f"no step since {self._stepped_at:.0f} s: {self.depths()}, leases {held}")
        self._look()
        self.clock.after(self.scene.tick_seconds, self._tick)

    def _forget_ended(self) -> None:
        for node in self.nodes.values():
            node.sampler.forget_ended(self._ended.__contains__)
        self.clock.after(LOOK_SECONDS, self._forget_ended)

    def _wake(self) -> None:
        if not self._looks:
            self._looks = True
            self.clock.after(CONTROL_SECONDS, self._woken)

    def _woken(self) -> None:
        self._looks = False
        self._look()

    def _look(self) -> None:
        self.scheduler.look(self.clock.now)

    def _leased(self, name: str, lease: Lease) -> None:
        node = self.nodes.get(name)
        if node is not None:
            self.clock.after(CONTROL_SECONDS, self._obey, node, lease)

    def _obey(self, node: SimulatedNode, lease: Lease) -> None:
        if node.is_dead:
            return
        node.on_lease(lease)
        if lease.trainer and self.trainer.lead is not node:
            self.trainer.starts(node)

    def _told(self, event: Event) -> None:
        if isinstance(event, GroupAdmitted):
            self.trainer.admitted(event.group)

    def _join(self, name: str) -> None:
        slots = self.config.fleet.slots
        node = SimulatedNode(name, self.clock, self.account, self.scene.cost, self, slots)
        self.nodes[name] = node
        self._all.append(node)
        self.trainer.know(node)
        self.account.does(name, node.doing, self.clock.now)
        self.scheduler.arrives(status_of(name, Service.ROLLOUT_WORKER, "rollout"), status_of(name, Service.TRAINER, "train"))
        self._wake()

    def _die(self, name: str) -> None:
        node = self.nodes.pop(name)
        node.die()
        self.trainer.died(node)
        self.scheduler.leaves(name)
        self._wake()

    def _outcome(self) -> Outcome:
        account = self.account
        self._book()
        account.cut(self.clock.now)
        effort = self._all_effort() - self._effort
        lost = account.wrong + abs(sum(each.sampler.unaccounted for each in self._all))
        return Outcome(
            seconds=self.clock.now - account.began,
            steps=self.trainer.step,
            trained_tokens=account.trained,
            masked_tokens=account.masked,
            share=account.shares(),
            staleness=dict(sorted(account.staleness.items())),
            reprefilled_tokens=account.reprefilled,
            moved_generations=account.moved,
            lost_or_repeated_tokens=lost,
            unsaid_tokens=account.unsaid,
            cache_hits=account.found_again / account.asked_again if account.asked_again else 1.0,
            sampled_tokens=account.sampled,
            node_seconds=account.node_seconds,
            floor_seconds=(account.rollout_floor + account.train_floor) / account.floor_tokens,
            rollout_share=account.rollout_floor / (account.rollout_floor + account.train_floor),
            all_seconds=self.clock.now,
            all_tokens=account.all_trained,
            num_plans=self.scheduler.num_plans,
            num_events=self.clock.num_events,
            losses=losses_of(account, effort, self.scene.cost, batch=self._work.batch),
            spans=tuple(account.spans),
            depths=tuple(account.depths),
            step_seconds=tuple(account.step_times),
        )


def simulate(scene: Scene) -> Outcome:
    """Run a scene to its last step."""
    return Simulation(scene).simulate()
