"""Policies: three ways of giving roles to the same fleet, each a pure function of one file."""

from collections.abc import Mapping

from . import colocated, disaggregated, multiplexed
from .base import Assignment, Demand, Node, Policy, Process

POLICIES: Mapping[str, Policy] = {
    "multiplexed": multiplexed.next_assignments,
    "colocated": colocated.next_assignments,
    "disaggregated": disaggregated.next_assignments,
}
"""By the name that ``fleet.policy`` of a run document uses."""

__all__ = ["POLICIES", "Assignment", "Demand", "Node", "Policy", "Process"]
