"""Policies: ways of giving roles to the same fleet, each a pure function of one file, by the name that a run document uses.

``module:function`` names a user's own policy. It is imported once, when the run is requested; ``validation`` checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from seamlessflow.errors import ConfigError

from . import auto, colocated, disaggregated, multiplexed
from .base import Assignment, Demand, Node, Policy, Process, Rates

POLICIES: Mapping[str, Policy] = {
    "multiplexed": multiplexed.next_assignments,
    "colocated": colocated.next_assignments,
    "disaggregated": disaggregated.next_assignments,
    "auto": auto.next_assignments,
}

__all__ = ["POLICIES", "Assignment", "Demand", "Node", "Policy", "Process", "Rates", "policy_of"]


@cache
def policy_of(name: str) -> Policy:
    """The policy of a run document. Raises ConfigError that names the problem."""
    if name in POLICIES:
        return POLICIES[name]
    module, _, function = name.partition(":")
    if not module or not function:
        raise ConfigError(f"fleet.policy is {name!r}: expected {', '.join(POLICIES)}, or module:function")
    try:
        found = getattr(import_module(module), function)
    except ImportError as wrong:
        raise ConfigError(f"fleet.policy {name!r}: the scheduler cannot import {module} ({wrong})") from wrong
    except AttributeError as wrong:
        raise ConfigError(f"fleet.policy {name!r}: {module} has no {function}") from wrong
    except Exception as wrong:  # a module of a user may raise anything while it is imported
        raise ConfigError(f"fleet.policy {name!r}: importing {module} failed: {wrong!r}") from wrong
    if not callable(found):
        raise ConfigError(f"fleet.policy {name!r} is no function")
    policy: Policy = found
    return policy
