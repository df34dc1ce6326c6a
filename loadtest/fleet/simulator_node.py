"""One simulated node: a device that a rollout-worker or a trainer holds, as its leases say. Pure.

    lease rollout ──▶ (device free) awake, newest weights ──▶ RoleTaken(rollout-worker), pulls
    other lease   ──▶ pulls no more, hands back or freezes ──▶ engine to sleep ──▶ RoleReleased(rollout-worker)
    lease train   ──▶ (device free) trainer's state loaded ──▶ RoleTaken(trainer); with each further lease again
    other lease   ──▶ (no step in progress) state away ──▶ RoleReleased(trainer)

As the real services do it: a newer lease is obeyed when the move in progress is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from seamlessflow.contracts import Lease, Role, RoleReleased, RoleTaken, Service

from .constants import CONTROL_SECONDS, REDELIVERY_SECONDS
from .cost import Cost
from .simulator_account import Account, Doing
from .simulator_clock import Clock
from .simulator_episodes import Episode
from .simulator_sampler import Home, Sampler

WORKER, TRAINER = Service.ROLLOUT_WORKER.value, Service.TRAINER.value


class Surroundings(Home, Protocol):
    """What a node tells others."""

    run: str

    def publish(self, event: RoleTaken | RoleReleased) -> None: ...
    def bind(self, sampler: Sampler, buckets: tuple[int, ...]) -> None: ...
    def unbind(self, sampler: Sampler) -> None: ...
    def give_back(self, episodes: list[Episode], after_seconds: float) -> None: ...
    def device_taken(self, node: SimulatedNode) -> None: ...
    def is_stepping(self, node: SimulatedNode) -> bool: ...


class SimulatedNode:
    """``on_lease`` moves it; its ``sampler`` is given generations."""

    def __init__(self, name: str, clock: Clock, account: Account, cost: Cost, around: Surroundings, slots: int) -> None:
        self.name = name
        self.lease: Lease | None = None
        self.holder: str | None = None
        self.is_dead = False
        self.sampler = Sampler(name, clock, account, cost, around, slots)
        self.sampler.noted = self.note  # type: ignore[method-assign]
        self._clock, self._account, self._cost, self._around = clock, account, cost, around
        self._is_moving = False
        self._frozen: list[Episode] = []

    @property
    def is_to_train(self) -> bool:
        """Whether its newest lease says so."""
        return self.lease is not None and self.lease.role is Role.TRAIN

    @property
    def doing(self) -> Doing:
        """What it does with its device now."""
        if self._is_moving:
            return Doing.HANDOVER
        if self.holder == TRAINER:
            return Doing.TRAIN if self._around.is_stepping(self) else Doing.IDLE
        if self.sampler.is_loading:
            return Doing.LOAD
        return Doing.ROLLOUT if self.holder == WORKER and self.sampler.is_busy else Doing.IDLE

    def note(self) -> None:
        """What it does may have changed."""
        if not self.is_dead:
            self._account.does(self.name, self.doing, self._clock.now)

    def on_lease(self, lease: Lease) -> None:
        """Obey a lease, as soon as the move in progress is over."""
        before, self.lease = self.lease, lease
        news = before is None or (before.buckets, before.lent) != (lease.buckets, lease.lent)
        if self.sampler.pulls and lease.role is Role.ROLLOUT and news:
            self.sampler.is_lent = lease.lent
            self._around.bind(self.sampler, lease.buckets)
        self.react()

    def react(self) -> None:
        """Do the next move that the newest lease asks for, if any."""
        if self._is_moving or self.is_dead or self.lease is None:
            return
        role = self.lease.role
        if self.holder == WORKER and role is not Role.ROLLOUT:
            self._let_go(self.lease)
        elif self.holder == TRAINER and role is not Role.TRAIN:
            if not self._around.is_stepping(self):
                self._move(self._cost.offload_seconds, self._trainer_gone)
        elif self.holder == TRAINER:
            self._trainer_there()
        elif self.holder is None and role is Role.ROLLOUT:
            self._move(self._cost.wake_seconds + self._cost.load_seconds, self._awake)
        elif self.holder is None and role is Role.TRAIN:
            self._move(self._cost.onload_seconds, self._trainer_there)

    def die(self) -> None:
        """Its processes are killed."""
        self._stop_pulling()
        self._around.give_back(self.sampler.die() + self._frozen, REDELIVERY_SECONDS)
        self._frozen = []
        self.is_dead = True
        self._account.does(self.name, None, self._clock.now)

    def _move(self, seconds: float, then: Callable[[], None]) -> None:
        self._is_moving = True
        self.note()
        self._clock.after(seconds, self._moved, then)

    def _moved(self, then: Callable[[], None]) -> None:
        self._is_moving = False
        if not self.is_dead:
            then()
            self.note()

    def _let_go(self, lease: Lease) -> None:
        self._stop_pulling()
        taken = self.sampler.close()
        if lease.hand_back:
            self._around.give_back(taken + self._frozen, CONTROL_SECONDS)
            self._frozen = []
        else:
            self._frozen += taken
        self._move(self._cost.sleep_seconds, self._asleep)

    def _asleep(self) -> None:
        self.holder = None
        self._publish(RoleReleased, WORKER)
        self.react()

    def _awake(self) -> None:
        self.holder = WORKER
        self.sampler.open()
        self._publish(RoleTaken, WORKER)
        frozen, self._frozen = self._frozen, []
        for episode in frozen:
            self.sampler.take(episode)
        if self.lease is not None and self.lease.role is Role.ROLLOUT:
            self.sampler.pulls, self.sampler.is_lent = True, self.lease.lent
            self._around.bind(self.sampler, self.lease.buckets)
        self.react()

    def _trainer_there(self) -> None:
        self.holder = TRAINER
        self._publish(RoleTaken, TRAINER)
        if self.is_to_train:
            self._around.device_taken(self)
        else:
            self.react()

    def _trainer_gone(self) -> None:
        self.holder = None
        self._publish(RoleReleased, TRAINER)
        self.react()

    def _stop_pulling(self) -> None:
        if self.sampler.pulls:
            self.sampler.pulls = False
            self._around.unbind(self.sampler)

    def _publish(self, kind: type[RoleTaken] | type[RoleReleased], service: str) -> None:
        assert self.lease is not None
        self._around.publish(kind(run=self._around.run, node=self.name, epoch=self.lease.epoch, service=service))
