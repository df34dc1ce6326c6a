"""Multiplexed: a node that can train rolls out whenever no batch is ready; nodes that only roll out never switch.

On a single machine its generations stay frozen in the engine during a step, since nobody else could go on with them;
where other nodes roll out, they are handed back to the queue.
"""

from __future__ import annotations

from collections.abc import Sequence

from .base import ROLLOUT, TRAIN, Assignment, Demand, Node, rollout, train, trainer_of


def next_assignments(fleet: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """See the module docstring; a policy as ``base`` promises."""
    lent = trainer_of(fleet, demand.run)
    return [_lent(node, fleet, demand) if node is lent else rollout(node, demand, "it rolls out for the run") for node in fleet]


def _lent(node: Node, fleet: Sequence[Node], demand: Demand) -> Assignment:
    """What the trainer's node does now."""
    if not node.has(ROLLOUT):
        return train(node, demand, "it can only train")
    if not demand.wants_train:
        return rollout(node, demand, "no batch is ready, so its device is lent to rollout", trainer=True)
    if not node.can(TRAIN):
        return rollout(node, demand, "a batch is ready, but its trainer process is away", trainer=True)
    others = any(other is not node and other.can(ROLLOUT) for other in fleet)
    held = "other nodes go on with its generations" if others else "its generations stay frozen meanwhile"
    return train(node, demand, f"a batch is ready; {held}", hand_back=others)
