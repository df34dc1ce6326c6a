"""What workers and trainers of the hand-over's world have in common: a device, which goes with its holder, and leases obeyed
one thing at a time.

A lease is read late or not at all, and an older one than the newest known is not obeyed. Processes die, hang and are slow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seamlessflow.contracts import Lease, RoleReleased, RoleTaken
from seamlessflow_rollout_worker.service import Move
from tests.services.scheduler.scheduler_world import RUN

if TYPE_CHECKING:
    from tests.services.scheduler.handover_world import World

WORKER, TRAINER = "rollout-worker", "trainer"
CAPABILITY = {WORKER: "rollout", TRAINER: "train"}


@dataclass(eq=False)
class Machine:
    """One device. Two machines may have one name by mistake."""

    node: str
    holder: Process | None = None


class Process(ABC):
    """What a worker and a trainer have in common: a lease that was read, and things to do one after the other."""

    service = ""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine = world, machine
        self.is_alive, self.is_hung, self.is_slow = True, False, False
        self.lease: Lease | None = None
        self.is_news = False
        self.todo: deque[str] = deque()
        self.renewed_at, self.revision = world.time, 0

    @property
    def holds(self) -> bool:
        return self.machine.holder is self

    @property
    def acts(self) -> bool:
        return self.is_alive and not self.is_hung

    def read(self, lease: Lease) -> None:
        """A lease was read, maybe late: an older one than the newest known is not obeyed."""
        if self.acts and (self.lease is None or lease.epoch > self.lease.epoch):
            self.lease, self.is_news = lease, True

    def act(self) -> bool:
        """Do the next thing. False: there is none, or it has to wait."""
        if not self.acts:
            return False
        if self.is_news and (not self.todo or self.todo[0] == Move.TAKE):
            assert self.lease is not None
            self.is_news = False
            self.todo = deque(self.plan(self.lease))
        if not self.todo or not self.do(self.todo[0]):
            return False
        self.todo.popleft()
        return True

    @abstractmethod
    def plan(self, lease: Lease) -> list[str]:
        """What to do about a lease, one thing after the other."""

    @abstractmethod
    def do(self, what: str) -> bool:
        """False: it has to wait, and is tried again."""

    def take(self) -> bool:
        if self.machine.holder is None:
            self.machine.holder = self
        return self.holds

    def release(self) -> None:
        if self.holds:
            self.machine.holder = None

    def die(self) -> None:
        self.is_alive = False
        self.release()

    def publish_role(self, kind: type[RoleTaken] | type[RoleReleased]) -> None:
        assert self.lease is not None
        epoch = self.obeyed
        self.world.publish(kind(run=RUN, node=self.machine.node, epoch=epoch, service=self.service))

    obeyed = 0
    """Epoch of the lease whose plan is being carried out."""
