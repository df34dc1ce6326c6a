"""Auto: the gang's size and the lending follow what is measured, step by step.

A step costs R node-seconds of rollout and T of training, so of N nodes N·T/(R+T) should train: the *ideal share*. No split
into whole nodes is that, so the gang alternates between the two sizes around it, in long strides: the smaller one lets
batches pile up, the larger one works them off. One node changes hands at each turn, at the end of a step.

    smaller ──(even the larger one will not run dry during its next step)──▶ larger
    larger ──(it would run dry)──▶ smaller; lent as a whole while the gap is worth it

Sizes outside those two are tried where the measured share is wrong: batches pile up at the larger one, or it runs dry at the
smaller one, step after step. With one or two nodes, or while nothing may be rolled out during a step, it is multiplexed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .base import ROLLOUT, TRAIN, Assignment, Demand, Node, rollout, trainer_of
from .gang import choose_members, is_told, patience
from .multiplexed import lent

FEW_NODES = 2
SPARE, MARGIN = 0.1, 0.1
"""Batches: the turning points lie ``MARGIN`` to either side of a point where the larger gang will have ``SPARE`` left."""
TOO_MANY = 1.5
"""Batches. More than this wait, and do not get fewer: the gang is too small, whatever was measured."""
UNSURE = 0.04
"""Of a step's time: its end is not known better."""
FIRST_SHARE = 0.25
"""Of the nodes, for the first step: nothing is measured yet."""


@dataclass(frozen=True, slots=True)
class Size:
    """Nodes of the gang from the next step on, and why."""

    num_nodes: int
    reason: str


def next_assignments(fleet: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
    """See the module docstring; a policy as ``base`` promises."""
    lead = trainer_of(fleet, demand.run)
    if lead is None:
        return [rollout(node, demand, "no node can train: it rolls out as far as the staleness bound allows") for node in fleet]
    size = gang_size(fleet, demand, now, lead)
    members = choose_members(fleet, demand, now, lead, size.num_nodes)
    return lent(fleet, demand, now, lead, members, size.reason)


def gang_size(fleet: Sequence[Node], demand: Demand, now: float, lead: Node) -> Size:
    """How many nodes the next step is to be taken by."""
    num_able = 1 + sum(node is not lead and node.can(TRAIN) for node in fleet)
    most, num_nodes = min(demand.train_nodes, num_able), sum(node.can(ROLLOUT) or node.can(TRAIN) for node in fleet)
    if num_nodes <= FEW_NODES or demand.max_staleness == 0 or most <= 1:
        return Size(most, "")
    rates, current = demand.rates, _current(fleet, demand, lead)
    if rates.rollout_seconds is None or rates.train_seconds is None:
        first = max(1, min(most, math.ceil(FIRST_SHARE * num_nodes)))
        return Size(current or first, f"{current or first} nodes until a step was measured")
    share = num_nodes * rates.train_seconds / (rates.rollout_seconds + rates.train_seconds)
    return _turned(demand, now, num_nodes, current, share, most)


def _current(fleet: Sequence[Node], demand: Demand, lead: Node) -> int:
    """Nodes of the gang as it is or is about to be; 0: it is lent to rollout."""
    if not is_told(lead, demand):
        return 0
    assert lead.lease is not None
    listed = {lead.name, *lead.lease.gang}
    # Told to train after the lead's lease was written, it comes; before, it goes.
    joining = sum(is_told(node, demand) and node.lease_since > lead.lease_since and node.name not in listed for node in fleet)
    return len(listed) + joining


def _turned(demand: Demand, now: float, num_nodes: int, current: int, share: float, most: int) -> Size:
    """The smaller or the larger gang, as batches pile up or run out."""
    rates = demand.rates
    assert rates.rollout_seconds is not None and rates.train_seconds is not None
    most = min(most, num_nodes - 1)
    smaller = max(1, min(most, _corrected(demand, math.floor(share))))
    larger = min(most, smaller + 1)
    said = f"ideal share {share:.2f} of {num_nodes} nodes (R {rates.rollout_seconds:.0f} s, T {rates.train_seconds:.0f} s)"
    if not current:
        return Size(smaller, f"{said}: {smaller}")
    if larger == smaller:
        return Size(smaller, f"{said}: {smaller}")
    seconds_left = _seconds_left(demand, now)
    if seconds_left > _lead_seconds(demand):
        return Size(current, f"{said}: {current} until the step ends")
    waiting = demand.waiting + seconds_left * (num_nodes - current) / rates.rollout_seconds
    needed = _needed(demand, num_nodes, larger)
    turn = needed + (MARGIN if current <= smaller else -MARGIN)
    size = larger if waiting >= turn else smaller
    return Size(size, f"{said}; {waiting:.2f} batches wait then, {larger} nodes need {needed:.2f}: {size}")


def _needed(demand: Demand, num_nodes: int, size: int) -> float:
    """Batches that must wait when a step begins, so that this gang finds one at its end, too."""
    rates = demand.rates
    assert rates.rollout_seconds is not None and rates.train_seconds is not None
    refilled = (num_nodes - size) * rates.train_seconds / size / rates.rollout_seconds
    return min(max(1.0, 2.0 - refilled) + SPARE, demand.max_staleness - 2 * MARGIN)


def _corrected(demand: Demand, smaller: int) -> int:
    """The measured share is wrong when batches pile up although the larger gang trained, or run out with the smaller one."""
    last = demand.rates.step_nodes
    if demand.rates.waited is None or not last:
        return smaller
    waited, before = demand.rates.waited
    if last > smaller and waited > TOO_MANY and waited > before - MARGIN:
        return last
    if last <= smaller and waited < 1 and before < 1 and waited <= before:
        return last - 1
    return smaller


def _seconds_left(demand: Demand, now: float) -> float:
    """Of the step that is being taken."""
    rates = demand.rates
    if rates.step_began_at is None or rates.step_seconds is None or not rates.step_nodes:
        return 0.0
    seconds = rates.step_seconds / rates.step_nodes
    left = rates.step_began_at + seconds - now
    return left if 0 < left <= seconds else 0.0  # beyond it this scheduler's clock is not the journal's


def _lead_seconds(demand: Demand) -> float:
    """How long before the end of a step, as far as that is known, a node is called, so that it is in place then."""
    rates = demand.rates
    seconds = (rates.step_seconds or 0.0) / max(1, rates.step_nodes)
    return min(patience(demand), 2 * (rates.reclaim_seconds or 0.0) + 1.0) + UNSURE * seconds
