"""Our policies in a timed run, where one real second stands for several modelled ones.

What a policy compares with its own constants is given to it in modelled seconds: what was measured, and what time it is. So a
batch that is due "in less than a hand-over" means the same as without a time scale, and as in the simulator. Where it waits for
a service to answer (a node that was told to let go, a trainer whose batch has its groups) the time that has passed stays in
real seconds: processes of this machine are as slow as they are.

    fleet.policy = "loadtest.fleet.timed_policies:auto_30"        auto, thirty modelled seconds in a real one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from seamlessflow_scheduler.policy import policy_of
from seamlessflow_scheduler.policy.base import Assignment, Demand, Node, Policy, Rates

SCALED = ("auto", "multiplexed")
"""Those that compare with constants. The others wait for nothing but nodes that do not answer."""
TIMES = tuple(each.name for each in fields(Rates) if each.name.endswith(("_seconds", "_at")))


def timed_policy(policy: str, time_scale: float) -> str:
    """What ``fleet.policy`` is in a run whose time is scaled so."""
    return f"{__name__}:{policy}_{time_scale:g}" if policy in SCALED and time_scale != 1.0 else policy


def in_modelled_seconds(policy: Policy, time_scale: float) -> Policy:
    """The same policy, asked in modelled seconds."""

    def next_assignments(fleet: Sequence[Node], demand: Demand, now: float) -> list[Assignment]:
        modelled = now * time_scale

        def waited_since(at: float) -> float:
            """A time since which somebody's answer is waited for."""
            return modelled - (now - at)

        rates = scaled(demand.rates, time_scale)
        if demand.rates.step_taken_at is not None:
            rates = replace(rates, step_taken_at=waited_since(demand.rates.step_taken_at))
        if demand.rates.group_finished_at is not None and demand.groups_ready >= demand.groups_per_step:
            rates = replace(rates, group_finished_at=waited_since(demand.rates.group_finished_at))
        nodes = [replace(node, lease_since=waited_since(node.lease_since)) for node in fleet]
        return policy(nodes, replace(demand, rates=rates), modelled)

    return next_assignments


def scaled(rates: Rates, time_scale: float) -> Rates:
    """What was measured, in modelled seconds."""
    found = {name: getattr(rates, name) for name in TIMES}
    return replace(rates, **{name: value * time_scale for name, value in found.items() if value is not None})


def __getattr__(name: str) -> Policy:
    """``POLICY_SCALE``, which the scheduler asks for by the name in the run document."""
    policy, _, time_scale = name.rpartition("_")
    if policy not in SCALED:
        raise AttributeError(name)
    try:
        return in_modelled_seconds(policy_of(policy), float(time_scale))
    except ValueError as wrong:
        raise AttributeError(name) from wrong
