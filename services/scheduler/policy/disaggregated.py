"""Disaggregated: a fixed split. One node trains for the whole run, all others roll out for the whole run.

It needs two device nodes. A single node that could do both is refused with that reason and stays idle: multiplexed and
colocated are made for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seamlessflow.contracts import Role

from .base import ROLLOUT, Assignment, Demand, Node, idle, rollout, train, trainer_of

NEEDS_TWO = "policy disaggregated needs a node that trains and another that rolls out"


def next_assignments(fleet: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """See the module docstring; a policy as ``base`` promises."""
    chosen = trainer_of(fleet, demand.run)
    if chosen is None:
        return [_without_trainer(node, demand) for node in fleet]
    if not any(node is not chosen and node.has(ROLLOUT) for node in fleet):
        reason = f"{NEEDS_TWO}; {chosen.name} is alone: add a node, or set policy to multiplexed"
        return [idle(node, demand, reason, trainer=node is chosen) for node in fleet]
    return [
        replace(train(node, demand, "it trains for the whole run"), never_rolls_out=True)
        if node is chosen
        else rollout(node, demand, "it rolls out for the whole run")
        for node in fleet
    ]


def _without_trainer(node: Node, demand: Demand) -> Assignment:
    """Who rolls out goes on. Nobody else begins: the trainer may be another process of that very node, yet to come."""
    if node.lease is not None and node.lease.run == demand.run and node.lease.role is Role.ROLLOUT:
        return rollout(node, demand, "it rolls out for the whole run")
    return idle(node, demand, "waits for a node that trains, which may be this one")
