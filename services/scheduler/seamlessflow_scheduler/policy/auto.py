"""Auto: the gang's size and the lending follow what is measured, step by step.

A step costs R node-seconds of rollout and T of training, both for the same tokens (``measurements``; batches that are finished
first have few), so of N nodes N·T/(R+T) should train: the *ideal share*. No split into whole nodes is that, so the gang
alternates between the two sizes around it, in long strides: the smaller one lets batches pile up, the larger one works them
off. One node changes hands at each turn, at the end of a step.

    smaller ──(even the larger one will not run dry during its next step)──▶ larger
    larger ──(it would run dry)──▶ smaller; lent as a whole while the gap is worth it

The two sizes move with what waits, so that a wrong measure corrects itself: many batches waiting call for more nodes than the
ideal share, none for fewer. With one or two nodes, or while nothing may be rolled out during a step, it is multiplexed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .base import ROLLOUT, TRAIN, Assignment, Demand, Node, Rates, rollout, trainer_of
from .gang import choose_members, is_told, patience
from .multiplexed import lent

FEW_NODES = 2
SPARE = 0.1
"""Batches that the larger gang will have left at the end of its next step, or it turns to the smaller."""
BAND = 0.1
"""The smaller one turns to the larger with so many more batches waiting, as a share of those that may wait: long strides, few
hand-overs, and still young tokens."""
GAIN = 0.2
"""A step is to refill one batch; so much less of it for each that waits beyond the middle of the band, or more for each that is
missing where steps run dry."""
REACH = 1 / 8
"""Of the gang's size: most that it changes by in one step; one node in any case."""
UNSURE = 0.04
"""Of a step's time: its end is not known better."""
NOTICE_SECONDS = 0.5
"""Until the next tick of the scheduler, where no event causes one."""
CLOCKS_SECONDS = 5.0
"""How far the journal's clock may be ahead of this scheduler's."""
FIRST_SHARE = 0.25
"""Of the nodes, for the first step: nothing is measured yet."""


@dataclass(frozen=True, slots=True)
class GangSize:
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


def gang_size(fleet: Sequence[Node], demand: Demand, now: float, lead: Node) -> GangSize:
    """The gang size of the next step."""
    able = [node for node in fleet if node is lead or node.can(TRAIN)]
    most, num_nodes = min(demand.train_nodes, len(able)), sum(node.can(ROLLOUT) or node.can(TRAIN) for node in fleet)
    if num_nodes <= FEW_NODES or demand.max_staleness == 0 or most <= 1:
        return GangSize(most, "")
    rates, current = demand.rates, _current(fleet, demand, lead)
    least = max(1, sum(not node.has(ROLLOUT) for node in able))
    most = max(least, min(most, num_nodes - 1))
    if not rates.rollout_seconds or not rates.train_seconds:  # what took no time was not measured
        first = min(most, current or max(least, math.ceil(FIRST_SHARE * num_nodes)))
        return GangSize(first, f"{first} nodes until a step was measured")
    return _turned(demand, now, num_nodes, current, least, most)


def _current(fleet: Sequence[Node], demand: Demand, lead: Node) -> int:
    """Nodes of the gang as it is or is about to be; 0: it is lent to rollout."""
    if not is_told(lead, demand):
        return 0
    assert lead.lease is not None
    listed = {lead.name, *lead.lease.gang}
    # Told to train after the lead's lease was written, it comes; before, it goes.
    joining = sum(is_told(node, demand) and node.lease_since > lead.lease_since and node.name not in listed for node in fleet)
    return len(listed) + joining


def _turned(demand: Demand, now: float, num_nodes: int, current: int, least: int, most: int) -> GangSize:
    """The smaller or the larger gang, as batches pile up or run out."""
    rates = demand.rates
    assert rates.rollout_seconds and rates.train_seconds
    share = num_nodes * rates.train_seconds / (rates.rollout_seconds + rates.train_seconds)
    reason = f"ideal share {share:.2f} of {num_nodes} nodes (R {rates.rollout_seconds:.0f} s, T {rates.train_seconds:.0f} s)"
    seconds_left = _seconds_left(demand, now)
    if current and seconds_left > _lead_seconds(demand):
        return GangSize(current, f"{reason}: {current} until the step ends")
    waiting = demand.waiting + seconds_left * (num_nodes - current) / rates.rollout_seconds
    band = BAND * demand.max_staleness
    refill = max(0.1, 1 - GAIN * (waiting - 1 - SPARE - band / 2)) if current else 1.0
    if refill > 1 and not _runs_dry(rates):
        refill = 1.0  # the smaller gang refills more than it takes
    centre = num_nodes / (1 + refill * rates.rollout_seconds / rates.train_seconds)
    smaller = max(least, min(most, _within_reach(rates, math.floor(centre))))
    larger = max(smaller, min(most, _within_reach(rates, smaller + 1)))
    if not current or larger == smaller:
        return GangSize(smaller, f"{reason}: {smaller}")
    needed = _needed(demand, num_nodes, larger)
    turn = needed + (band if current <= smaller else 0.0)
    size = larger if waiting >= turn else smaller
    return GangSize(size, f"{reason}; {waiting:.2f} batches wait then, {larger} nodes need {needed:.2f}: {size}")


def _needed(demand: Demand, num_nodes: int, size: int) -> float:
    """Batches that must wait when a step begins, so that this gang finds one at its end, too."""
    rates = demand.rates
    assert rates.rollout_seconds and rates.train_seconds
    refilled = (num_nodes - size) * rates.train_seconds / size / rates.rollout_seconds
    return min(max(1.0, 2.0 - refilled) + SPARE, 0.5 * demand.max_staleness)


def _runs_dry(rates: Rates) -> bool:
    """Whether steps had to wait for their batches one after the other: the measured share is too high."""
    return rates.waited is not None and max(rates.waited) < 1


def _within_reach(rates: Rates, size: int) -> int:
    """A size that is not far from that of the newest step: what is measured of one step is not certain."""
    if not rates.step_nodes:
        return size
    reach = max(1, round(REACH * rates.step_nodes))
    return max(rates.step_nodes - reach, min(rates.step_nodes + reach, size))


def _seconds_left(demand: Demand, now: float) -> float:
    """Of the step that is being taken."""
    rates = demand.rates
    if rates.step_began_at is None or rates.step_seconds is None or not rates.step_nodes:
        return 0.0
    seconds = rates.step_seconds / rates.step_nodes
    left = rates.step_began_at + seconds - now
    # Far beyond it this scheduler's clock is not the journal's.
    return min(left, seconds) if 0 < left <= seconds + CLOCKS_SECONDS else 0.0


def _lead_seconds(demand: Demand) -> float:
    """How long before the end of a step, as far as that is known, a node is called, so that it is in place then."""
    rates = demand.rates
    seconds = (rates.step_seconds or 0.0) / max(1, rates.step_nodes)
    return min(patience(demand), 2 * (rates.reclaim_seconds or 0.0) + NOTICE_SECONDS) + UNSURE * seconds
