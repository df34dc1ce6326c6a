"""Colocated: the whole fleet rolls out until the batch is ready, then all of it stops, then a gang trains, then again.

Strictly synchronous: members of the gang take their devices, and then the step begins, when every other node published that it
released its own. A node that does not within ``RELEASE_SECONDS`` (its process died under the lease) is not waited for: it no
longer rolls out.
"""

from __future__ import annotations

from collections.abc import Sequence

from seamlessflow.contracts import Role

from .base import ROLLOUT, TRAIN, Assignment, Demand, Node, idle, rollout, trainer_of
from .gang import RELEASE_SECONDS, WORKER, choose_members, gang_assignments, is_told, patience

__all__ = ["RELEASE_SECONDS", "next_assignments", "still_rolls_out"]


def next_assignments(fleet: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """See the module docstring; a policy as ``base`` promises."""
    lead = trainer_of(fleet, demand.run)
    if lead is None or not demand.wants_train or not lead.can(TRAIN):
        reason = "no batch is ready" if not demand.wants_train else "a batch is ready, but no trainer process is there"
        return [rollout(node, demand, f"{reason}: the whole fleet rolls out", trainer=node is lead) for node in fleet]
    members = choose_members(fleet, demand, now, lead, demand.train_nodes)
    busy = [node.name for node in fleet if node is not lead and still_rolls_out(node, demand, now)]
    if busy and not is_told(lead, demand) and not any(is_told(node, demand) for node in members):
        waits = f"a batch is ready; waits until {', '.join(busy)} let go"
        return [idle(node, demand, waits, trainer=node is lead) for node in fleet]

    def otherwise(node: Node) -> Assignment:
        reason = "the members of its gang take their devices first" if node is lead else "stopped while a step is taken"
        return idle(node, demand, reason, trainer=node is lead)

    reason = "a batch is ready and all others stopped"
    return gang_assignments(fleet, demand, now, lead, members, reason, otherwise, hands_back=False)  # no node goes on with them


def still_rolls_out(node: Node, demand: Demand, now: float) -> bool:
    """Whether a node may still sample: told to, or told to stop a moment ago and silent since."""
    if not node.can(ROLLOUT) or node.lease is None:
        return False
    if node.lease.role is Role.ROLLOUT:
        return True
    return WORKER in node.holding and now - node.lease_since < patience(demand)
