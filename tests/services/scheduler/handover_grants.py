"""What must be true of every lease that is written in the hand-over's world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seamlessflow.contracts import Lease, Role, RoleReleased, RoleTaken
from tests.services.scheduler.handover_processes import TRAINER
from tests.services.scheduler.scheduler_world import RUN

if TYPE_CHECKING:
    from tests.services.scheduler.handover_world import World


def check_grant(world: World, node: str, lease: Lease) -> None:
    """Release before grant, lease by lease: its writer may die behind any of them."""
    if not lease.trainer:
        return
    others = [name for name, (other, _) in world.leases.items() if name != node and other.run == RUN and other.trainer]
    assert not others, f"{node} is told to have the run's trainer while {', '.join(others)} has it"
    former = world.leases[node][0].gang if node in world.leases else ()
    for name in set(lease.gang[1:]) - set(former):
        assert world.leases[name][0].role is Role.TRAIN, f"{node} leads {name}, which was not told"
        if not world.leader.unheard and world.is_in_order and not world.has_doubles:
            assert _has_device(world, name), f"{node} leads {name}, whose trainer did not publish that it has its device"


def _has_device(world: World, node: str) -> bool:
    """Whether a trainer has the device of its node, by the journal."""
    published = [each for each in world.journal.of(RoleTaken, RoleReleased) if (each.node, each.service) == (node, TRAINER)]
    return max(published, key=lambda each: (each.epoch, isinstance(each, RoleReleased)), default=None).__class__ is RoleTaken
