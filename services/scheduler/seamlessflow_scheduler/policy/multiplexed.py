"""Multiplexed: a gang of ``train_nodes`` rolls out whenever no batch is ready and none is due so soon that a hand-over there
and back would cost more; nodes that only roll out never switch.

Nothing is waited for: generations of a node that is called back are handed back and go on elsewhere with their tokens. On a
single machine they stay frozen in the engine during a step, since no other node could go on with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seamlessflow.contracts import Role

from .base import ROLLOUT, TRAIN, Assignment, Demand, Node, member, rollout, train, trainer_of
from .gang import choose_members, gang_assignments
from .lending import LendingDecision, lending_decision


def next_assignments(fleet: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """See the module docstring; a policy as ``base`` promises."""
    lead = trainer_of(fleet, demand.run)
    if lead is None:
        return [rollout(node, demand, "no node can train: it rolls out as far as the staleness bound allows") for node in fleet]
    return lent(fleet, demand, now, lead, choose_members(fleet, demand, now, lead, demand.train_nodes))


def lent(
    fleet: Sequence[Node], demand: Demand, now: float, lead: Node, members: Sequence[Node], sized: str = ""
) -> list[Assignment]:
    """A gang that is lent to rollout between its steps. ``sized``: why it has this size."""
    verdict = lending_decision(fleet, demand, now, [lead, *members])
    if verdict.trains and not lead.can(TRAIN):
        verdict = LendingDecision(False, "a batch is ready, but its trainer process is away")
    able = {lead.name, *(node.name for node in members)}

    def otherwise(node: Node) -> Assignment:
        if node is lead and not node.has(ROLLOUT):
            return train(node, demand, "it can only train")
        if node.name in able and not node.has(ROLLOUT):
            return member(node, lead, demand, "it can only train")
        if node.name not in able:
            return rollout(node, demand, "it rolls out for the run")
        reason = f"{verdict.reason}; it rolls out until the others of its gang have their devices"
        assigned = rollout(node, demand, reason if verdict.trains else verdict.reason, trainer=node is lead)
        return replace(assigned, lent=assigned.role is Role.ROLLOUT)

    if not verdict.trains and not (lead.can(TRAIN) and not lead.has(ROLLOUT)):
        return [otherwise(node) for node in fleet]
    if not verdict.trains:  # a node that can only train stays where it is
        stay = [node for node in members if not node.has(ROLLOUT)]
        return gang_assignments(fleet, demand, now, lead, stay, "it can only train", otherwise)
    others = any(node.can(ROLLOUT) and node.name not in able for node in fleet)
    held = "other nodes go on with its generations" if others else "its generations stay frozen meanwhile"
    reason = "; ".join(each for each in (verdict.reason, sized, held) if each)
    return gang_assignments(fleet, demand, now, lead, members, reason, otherwise)
