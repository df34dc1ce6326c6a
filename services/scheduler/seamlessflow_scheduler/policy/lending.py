"""Decides whether training nodes are lent to rollout: is a gap worth a hand-over there and back? Pure.

The next batch is expected after what its missing groups cost, at the speed of the nodes that roll out; and not before the
newest drought (no group finished) has lasted as long again. So an estimate that proves wrong is not trusted for long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .base import ROLLOUT, Demand, Node
from .gang import is_told

WORTH = 1.5
"""A gap must be this many times as long as the hand-over there and back: it also costs prompts that are prefilled again."""
UNMEASURED_SECONDS = 2.0
"""A hand-over each way, before one was measured."""
HOLD_SECONDS = 5.0
"""The groups of the next batch are finished, so its BatchReady comes within this time, or something else is wrong."""


@dataclass(frozen=True, slots=True)
class LendingDecision:
    """Whether the gang is lent. ``trains``: it holds its devices now."""

    trains: bool
    reason: str


def lending_decision(fleet: Sequence[Node], demand: Demand, now: float, gang: Sequence[Node]) -> LendingDecision:
    """Whether the gang (its lead first) holds its devices, and why."""
    if demand.wants_train:
        return LendingDecision(True, "a batch is ready")
    names = {node.name for node in gang}
    rolling = sum(node.can(ROLLOUT) and node.name not in names for node in fleet)
    gap = seconds_to_batch(demand, now, rolling)
    if any(is_told(node, demand) for node in gang if node.has(ROLLOUT)):
        return _kept(demand, now, gang[0], gap)
    return _reclaimed(demand, gap, reclaim_seconds(demand, len(gang)))


def seconds_to_batch(demand: Demand, now: float, num_rollout: int) -> float | None:
    """Until the next batch is complete, with so many nodes rolling out; None: not known."""
    missing = demand.groups_per_step - demand.groups_ready
    if missing <= 0:
        return 0.0
    if num_rollout <= 0:
        return math.inf
    rates = demand.rates
    if rates.rollout_seconds is None or rates.group_finished_at is None:
        return None
    return max(missing / demand.groups_per_step * rates.rollout_seconds / num_rollout, now - rates.group_finished_at)


def handover_seconds(demand: Demand) -> float:
    """Seconds of a hand-over to training and back to rollout."""
    rates = demand.rates
    there = rates.reclaim_seconds if rates.reclaim_seconds is not None else UNMEASURED_SECONDS
    back = rates.lend_seconds if rates.lend_seconds is not None else UNMEASURED_SECONDS
    return there + back


def reclaim_seconds(demand: Demand, num_nodes: int) -> float | None:
    """From the decision until a step may begin: members first, then the lead. None: not measured."""
    there = demand.rates.reclaim_seconds
    return None if there is None else there * min(2, num_nodes)


def _kept(demand: Demand, now: float, lead: Node, gap: float | None) -> LendingDecision:
    """The gang has its devices and no batch: does it wait for one?"""
    worth = max(WORTH * handover_seconds(demand), 2 * (demand.rates.reclaim_seconds or 0.0))
    if gap == 0:
        since = max(lead.lease_since, demand.rates.step_taken_at or 0.0, demand.rates.group_finished_at or 0.0)
        if abs(now - since) < HOLD_SECONDS:  # the journal's clock may be ahead of ours
            return LendingDecision(True, "the groups of the next batch are finished")
        return LendingDecision(
            False, f"the next batch has its groups, and is not ready after {HOLD_SECONDS:.0f} s: lent to rollout"
        )
    if gap is None:
        return LendingDecision(False, "no batch is ready, so its device is lent to rollout")
    if gap <= worth:
        return LendingDecision(
            True, f"the next batch is due in {gap:.1f} s: not worth a hand-over there and back ({worth:.1f} s)"
        )
    due = f"is due in {gap:.0f} s, longer than a hand-over there and back ({worth:.1f} s)" if gap < math.inf else "needs it"
    return LendingDecision(False, f"no batch is ready and the next {due}: its device is lent to rollout")


def _reclaimed(demand: Demand, gap: float | None, in_time: float | None) -> LendingDecision:
    """The gang rolls out: is it called back, so that it is there when the batch is complete?"""
    if gap is None or in_time is None or gap in (0, math.inf):
        return LendingDecision(False, "no batch is ready, so its device is lent to rollout")
    if gap <= in_time:
        return LendingDecision(True, f"called back: the next batch is due in {gap:.1f} s, and that takes {in_time:.1f} s")
    return LendingDecision(False, f"no batch is ready (the next is due in {gap:.0f} s), so its device is lent to rollout")
