"""Who will not roll out again hands back what it has: freezing is for hand-overs that return. Pure."""

from __future__ import annotations

import pytest

from seamlessflow.contracts import Role
from seamlessflow_rollout_worker.service import Move, Standing, moves
from seamlessflow_scheduler.fleet_state import HeldLease
from seamlessflow_scheduler.leases import next_lease
from seamlessflow_scheduler.placement.plan import next_plan
from seamlessflow_scheduler.policy import POLICIES, Demand, Node, Process

SERVICES = {
    "m": {"trajectory-manager": ()},
    "a": {"agent-runner": ()},
    "n1": {"rollout-worker": ("rollout",), "trainer": ("train",)},
    "n2": {"rollout-worker": ("rollout",)},
    "t": {"trainer": ("train",)},
}
HOLDS = Standing(run="r", holds_device=True, holds_generations=True)
FROZEN = Standing(run="r", holds_device=False, holds_generations=True)


class World:
    """Five nodes, of which n1 may lose tags; leases are written as planned."""

    def __init__(self, policy: str) -> None:
        self.policy, self.leases, self.now = policy, dict[str, HeldLease](), 0.0

    def tick(self, *, tags: tuple[str, ...] = ("h800",), away: tuple[str, ...] = (), wants_train: bool = False) -> HeldLease:
        """Carries out the plan; n1's lease then. tags, away: n1's by hand."""
        self.now += 60.0
        demand = Demand("r", self.policy, wants_train, envs=("e",), tags=("h800+rollout",), max_staleness=1)
        for change in next_plan([self._node(name, tags, away) for name in SERVICES], self.leases, [demand], self.now).changes:
            lease = next_lease(change, self.leases.get(change.node), self.now)
            self.leases[change.node] = HeldLease(lease, lease.epoch, self.now)
        return self.leases["n1"]

    def _node(self, name: str, tags: tuple[str, ...], away: tuple[str, ...]) -> Node:
        taken = frozenset(away if name == "n1" else ())
        processes = {service: Process(frozenset(can) - taken) for service, can in SERVICES[name].items()}
        held = self.leases.get(name)
        has = frozenset(tags if name == "n1" else ("h800",))
        return Node(name, processes, None if held is None else held.lease, self.now, tags=has, taken_away=taken)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("tags", "away"), [((), ()), (("h800",), ("rollout",)), ((), ("h800",))])
def test_a_node_that_loses_what_the_work_needs_hands_its_generations_to_those_who_have_it(policy, tags, away):
    """Under every policy, whichever tag it was and however it went."""
    world = World(policy)
    before = world.tick().lease
    after = world.tick(tags=tags, away=away).lease

    assert before.role is Role.ROLLOUT and after.role is not Role.ROLLOUT
    assert moves(HOLDS, after)[:2] == (Move.STOP, Move.HAND_BACK)


@pytest.mark.parametrize("role", [Role.IDLE, Role.TRAIN])
def test_a_node_that_is_frozen_and_then_loses_the_tag_is_told_to_hand_back(role):
    """Its role stays what it was, so the lease changes for this alone, and once."""
    world = World("multiplexed")
    held = world.tick(away=("train",) if role is Role.IDLE else ())
    lease = held.lease.model_copy(update={"role": role, "tags": (), "buckets": (), "lent": False, "hand_back": False})
    world.leases["n1"] = HeldLease(lease, 1, world.now)
    away = ("rollout",) if role is Role.TRAIN else ("train",)
    told = world.tick(tags=(), away=away, wants_train=role is Role.TRAIN).lease

    assert moves(FROZEN, told)[:2] == (Move.STOP, Move.HAND_BACK)
    assert world.tick(tags=(), away=away, wants_train=role is Role.TRAIN).lease.epoch == told.epoch, "once is enough"


def test_a_node_that_comes_back_to_what_it_samples_keeps_it_frozen():
    """The whole fleet stops for a step and goes on after it."""
    world = World("colocated")
    world.tick()
    stopped = world.tick(wants_train=True).lease

    assert stopped.role is Role.IDLE and moves(HOLDS, stopped)[:2] == (Move.STOP, Move.FREEZE)
