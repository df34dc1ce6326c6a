"""Trainers of the hand-over's world: what trainer/device_turn and trainer/service do with a lease, one thing at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seamlessflow.contracts import BatchReady, Lease, Role, RoleReleased, RoleTaken, StepTaken, TrainerStarted
from seamlessflow_rollout_worker.service import Move
from tests.services.scheduler.handover_processes import TRAINER, Machine, Process
from tests.services.scheduler.scheduler_world import RUN

if TYPE_CHECKING:
    from tests.services.scheduler.handover_world import World


class Trainer(Process):
    service = TRAINER

    def __init__(self, world: World, machine: Machine) -> None:
        super().__init__(world, machine)
        self.is_new, self.is_lent, self.may_step = True, False, False
        self.gang: tuple[str, ...] = ()
        self.line = self.step = self.num_nodes = 0
        """Line 0: it is not in the run."""
        self.batch: str | None = None
        self.in_step = 0
        """Nodes of the step in progress."""
        self.partners: list[Process] = []
        """Who held a device for the step when it began."""
        self.has_hung = False
        """In the step in progress: then no lease needs to wait for it."""

    def plan(self, lease: Lease) -> list[str]:
        self.obeyed = lease.epoch
        leaves = ["leave"] if self.line and not (lease.run and lease.trainer) else []
        joins = ["join"] if lease.run and lease.trainer and (not self.line or leaves) else []
        is_new, self.is_new = self.is_new, False
        if lease.run is None:
            turn = ["release", "publish released"] if self.is_lent else ["release"]
        elif lease.role is Role.TRAIN:
            return [*leaves, *joins, Move.TAKE, "publish taken"]
        else:
            turn = ["release", "publish released"] if lease.trainer or self.is_lent or is_new else []
        return [*leaves, *turn, *joins]

    def do(self, what: str) -> bool:
        match what:
            case "leave":
                self.in_step, self.line, self.batch, self.may_step = 0, 0, None, False
                self.release()
            case "join":
                self.line = self.world.newest_line + 1
                self.step, self.batch = self.world.step, None
                self.world.publish(TrainerStarted(run=RUN, line=self.line, step=self.step, weights_version=self.line))
            case Move.TAKE:
                assert self.lease is not None
                self.gang, self.num_nodes = self.lease.gang, max(1, len(self.lease.gang))
                if not self.take():
                    return False
                self.is_lent = self.may_step = True
            case "publish taken":
                self.publish_role(RoleTaken)
            case "release":
                self.may_step = False
                if self.in_step:
                    return False
                self.release()
            case "publish released":
                self.publish_role(RoleReleased)
                self.is_lent = False
        return True

    def work(self) -> None:
        """Publish a ready batch, begin a step, or end one."""
        if not (self.acts and self.line):
            return
        lease, _ = self.world.leases[self.machine.node]
        if self.line < self.world.newest_line and lease.trainer:  # another has its name; its supervisor starts it again
            self.die()
            self.world.start(self.machine, TRAINER)
            return
        common = {"run": RUN, "step": self.step + 1, "line": self.line}
        if self.in_step:
            assert self.holds, "a step is taken on a device that is not the trainer's"
            self.in_step, self.step = 0, self.step + 1
            assert self.batch is not None
            published = StepTaken(**common, weights_version=self.step, groups=(self.batch,), metrics={})
            self.batch = None
            if self.world.publish(published) and self.line == self.world.newest_line:
                self.world.step = self.step
                self.world.trained += published.groups
        elif self.batch is None:
            ready = [group for group in self.world.groups if group not in self.world.trained]
            if ready:
                self.batch = ready[0]
                self.world.publish(BatchReady(**common, num_groups=1, num_tokens=1))
        elif self.may_step and self.holds:
            assert self.lease is not None
            self.in_step, self.has_hung = self.num_nodes, False
            self.partners = [each for each in self.world.trainers() if each.holds and each.machine.node in self.gang]
