"""Brings a gang of training nodes together and parts it again. Pure.

    told TRAIN ──▶ holds its device ──▶ in the lead's gang ──▶ not in it ──▶ settled ──▶ told something else
    (a member)     RoleTaken             the lead's lease,      its lease,    no step that began with it is in progress
                                         from its next step on  likewise

Release before grant: the lead, which rolls out until then, is told TRAIN when every member holds its device, or had its time.
Afterwards members come and go while steps are taken, each at the end of one: a lease names the nodes of *the next* step.
A member that people send away is in no gang any more, and stays where it is until the step is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from seamlessflow.contracts import Role, Service

from .base import ROLLOUT, TRAIN, Assignment, Demand, Node, member, train

RELEASE_SECONDS = 10.0
"""How long a node may take to release or take its device, and at least three times the measured time, before it is no longer
waited for."""
SLOW = 3.0
MOST_NAMED = 5
TRAINER, WORKER = Service.TRAINER.value, Service.ROLLOUT_WORKER.value


def choose_members(fleet: Sequence[Node], demand: Demand, now: float, lead: Node, num_nodes: int) -> list[Node]:
    """Members of the lead's next step: present members first, then nodes that can only train, then by name."""

    def rank(node: Node) -> tuple[bool, bool, bool, bool, str]:
        waits_in_vain = node.is_stuck or is_overdue(node, demand, now)
        return waits_in_vain, not is_told(node, demand), node.is_quiet, node.has(ROLLOUT), node.name

    able = [node for node in fleet if node is not lead and node.can(TRAIN)]
    return sorted(able, key=rank)[: max(0, min(num_nodes, demand.train_nodes) - 1)]


def gang_assignments(
    fleet: Sequence[Node],
    demand: Demand,
    now: float,
    lead: Node,
    members: Sequence[Node],
    reason: str,
    otherwise: Callable[[Node], Assignment],
    *,
    hands_back: bool = True,
) -> list[Assignment]:
    """Assignments that bring the gang to these nodes. ``otherwise``: for a node that is not (or not yet, or no longer) in it.

    hands_back: whether generations of its nodes go on elsewhere, where another node rolls out meanwhile.
    """
    wanted = {node.name for node in members}
    arrived = [node.name for node in members if is_in_place(node, demand)]
    awaited = any(not is_in_place(node, demand) and not is_overdue(node, demand, now) for node in members)
    begun = is_told(lead, demand)
    in_step = _may_be_in_step(fleet, lead, demand) if begun else frozenset[str]()
    hand_back = hands_back and any(node.can(ROLLOUT) and node is not lead and node.name not in wanted for node in fleet)

    def of(node: Node) -> Assignment:
        if node is lead:
            if awaited and not begun:
                return otherwise(node)
            return train(node, demand, _with(reason, arrived), hand_back=hand_back, members=arrived)
        if node.name in wanted:
            return member(node, lead, demand, f"{reason}: it is one of {len(members) + 1} nodes", hand_back=hand_back)
        if node.name in in_step:
            return member(node, lead, demand, "it leaves the gang when the step is taken", hand_back=hand_back)
        return otherwise(node)

    return [of(node) for node in fleet]


def is_told(node: Node, demand: Demand) -> bool:
    """Whether its lease has it train for the run, alone, as the lead or as a member."""
    return node.lease is not None and node.lease.run == demand.run and node.lease.role is Role.TRAIN


def is_in_place(node: Node, demand: Demand) -> bool:
    """Whether its trainer holds its device for the run."""
    holds = TRAINER in node.holding and WORKER not in node.holding
    return is_told(node, demand) and holds and node.can(TRAIN)


def is_overdue(node: Node, demand: Demand, now: float) -> bool:
    """Whether it was told to train and should be in place by now."""
    late = now - node.lease_since >= patience(demand)
    return is_told(node, demand) and not is_in_place(node, demand) and late


def stays_for_step(node: Node, fleet: Sequence[Node], demand: Demand) -> bool:
    """Whether a member that may train no more (drained, or ``train`` was taken from it by hand) holds its device for a step in
    progress. ``fleet``: the nodes of its run. Not without its process, nor without that of the lead: then the step is over.
    """
    trainer = node.processes.get(Service.TRAINER)
    if not is_told(node, demand) or trainer is None or trainer.gone_since is not None:
        return False
    leads = [other for other in fleet if other.lease is not None and other.lease.trainer and is_told(other, demand)]
    return any(
        lead is not node and lead.has(TRAIN) and _leads(lead, node) and _may_share_step(node, lead, demand) for lead in leads
    )


def patience(demand: Demand) -> float:
    """How long a node may take from its lease to its device, in seconds."""
    return max(RELEASE_SECONDS, SLOW * (demand.rates.reclaim_seconds or 0.0))


def _may_be_in_step(fleet: Sequence[Node], lead: Node, demand: Demand) -> frozenset[str]:
    """Nodes told to train that the lead's lease names, or may have named when the step in progress began.

    Not those without a trainer process, nor those of another lead: with them that step is over.
    """
    told = [node for node in fleet if is_told(node, demand) and node.has(TRAIN) and _leads(lead, node)]
    return frozenset(node.name for node in told if _may_share_step(node, lead, demand))


def _may_share_step(node: Node, lead: Node, demand: Demand) -> bool:
    """Whether a step in progress began, or may have begun, with a node that was told to train: the lead's lease names it, or is
    not the only one that counts yet."""
    assert lead.lease is not None
    is_settled = demand.settled_epochs.get(lead.name, -1) >= lead.lease.epoch
    return not is_settled or node.name in lead.lease.gang


def _leads(lead: Node, node: Node) -> bool:
    """Whether it is the lead of a node that was told to train."""
    return node is lead or (node.lease is not None and node.lease.gang[:1] == (lead.name,))


def _with(reason: str, members: Sequence[str]) -> str:
    if not members:
        return reason
    named = ", ".join(members[:MOST_NAMED])
    return f"{reason}; with {named}" + (f" and {len(members) - MOST_NAMED} others" if len(members) > MOST_NAMED else "")
