"""Colocated: the whole fleet rolls out until the batch is ready, then all of it stops, then one node trains, then again.

Strictly synchronous: the step begins when every other node said that it let go of its device. A node that does not say
so within ``RELEASE_SECONDS`` (its process died under the lease) is not waited for: it rolls out for nobody any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from seamlessflow.contracts import Role, Service

from .base import ROLLOUT, TRAIN, Assignment, Demand, Node, idle, rollout, train, trainer_of

RELEASE_SECONDS = 10.0


def next_assignments(fleet: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """See the module docstring; a policy as ``base`` promises."""
    chosen = trainer_of(fleet, demand.run)
    if chosen is None or not demand.wants_train or not chosen.can(TRAIN):
        reason = "no batch is ready" if not demand.wants_train else "a batch is ready, but no trainer process is there"
        return [rollout(node, demand, f"{reason}: the whole fleet rolls out", trainer=node is chosen) for node in fleet]
    begun = chosen.lease is not None and chosen.lease.run == demand.run and chosen.lease.role is Role.TRAIN
    busy = [node.name for node in fleet if node is not chosen and still_rolls_out(node, now)]
    if busy and not begun:
        waits = f"a batch is ready; waits until {', '.join(busy)} let go"
        return [idle(node, demand, waits, trainer=node is chosen) for node in fleet]
    return [
        train(node, demand, "a batch is ready and all others stopped")
        if node is chosen
        else idle(node, demand, "stopped while a step is taken")
        for node in fleet
    ]


def still_rolls_out(node: Node, now: float) -> bool:
    """Whether a node may still sample: told to, or told to stop a moment ago and silent since."""
    if not node.can(ROLLOUT) or node.lease is None:
        return False
    if node.lease.role is Role.ROLLOUT:
        return True
    return Service.ROLLOUT_WORKER.value in node.holding and now - node.lease_since < RELEASE_SECONDS
