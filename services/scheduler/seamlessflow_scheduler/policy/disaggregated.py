"""Disaggregated: a fixed split. A gang of ``train_nodes`` trains for the whole run, all others roll out for the whole run.

It needs two device nodes. A single node that could do both is refused with that reason and stays idle: multiplexed and
colocated are made for it. At least one node is left to roll out, however large the gang may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seamlessflow.contracts import Role

from .base import ROLLOUT, Assignment, Demand, Node, idle, rollout, trainer_of
from .gang import choose_members, gang_assignments

NEEDS_TWO = "policy disaggregated needs a node that trains and another that rolls out"


def next_assignments(fleet: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """See the module docstring; a policy as ``base`` promises."""
    num_rollout = sum(node.has(ROLLOUT) for node in fleet)
    splits = [node for node in fleet if num_rollout > node.has(ROLLOUT)]
    lead = trainer_of(splits, demand.run) or trainer_of(fleet, demand.run)
    if lead is None:
        return [_without_trainer(node, demand) for node in fleet]
    others = [node for node in fleet if node is not lead]
    if not any(node.has(ROLLOUT) for node in others):
        reason = f"{NEEDS_TWO}; {lead.name} is alone: add a node, or set policy to multiplexed"
        return [idle(node, demand, reason, trainer=node is lead) for node in fleet]
    members = choose_members(fleet, demand, now, lead, demand.train_nodes)
    gang = {lead.name, *(node.name for node in members)}
    if not any(node.has(ROLLOUT) and node.name not in gang for node in others):
        left = [node for node in members if node.has(ROLLOUT)][-1]
        members.remove(left)
        gang.remove(left.name)

    def otherwise(node: Node) -> Assignment:
        if node.name in gang:
            return idle(node, demand, "the members of its gang take their devices first", trainer=node is lead)
        return rollout(node, demand, "it rolls out for the whole run")

    given_out = gang_assignments(fleet, demand, now, lead, members, "it trains for the whole run", otherwise)
    return [replace(each, never_rolls_out=True) if each.node in gang else each for each in given_out]


def _without_trainer(node: Node, demand: Demand) -> Assignment:
    """Nodes that roll out go on. No other begins: the trainer may be another process of that very node, yet to come."""
    if node.lease is not None and node.lease.run == demand.run and node.lease.role is Role.ROLLOUT:
        return rollout(node, demand, "it rolls out for the whole run")
    return idle(node, demand, "waits for a node that trains, which may be this one")
