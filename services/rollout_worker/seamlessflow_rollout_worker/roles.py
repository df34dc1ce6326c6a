"""What a lease asks of a worker, as a list of moves: pure, so that every order of leases can be tested.

idle ──JOIN──▶ in a run, device not ours ──TAKE, PULL──▶ sampling
 ▲                 ▲        ▲                               │
 │                 │        └── STOP, FREEZE, RELEASE ──────┤   generations stay in the engine, pings go on
 │                 └── STOP, HAND_BACK, RELEASE ────────────┤   generations go back to the queue
 └── LEAVE ◀───────────── STOP, HAND_BACK, RELEASE ◀────────┘   the lease names another run, or none
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from seamlessflow.contracts import Lease, Role


class Move(StrEnum):
    """One thing to do; each may be repeated without harm."""

    STOP = "stop pulling"
    FREEZE = "freeze the engine with what it holds"
    HAND_BACK = "flush, nak, and put the engine to sleep"
    RELEASE = "let go of the device, and say RoleReleased"
    LEAVE = "leave the run and drop its engine"
    JOIN = "read the run and begin to fetch its model"
    TAKE = "take the device, load the newest weights, sample, and say RoleTaken"
    PULL = "pull generations of the lease's tags"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a worker stands."""

    run: str | None = None
    holds_device: bool = False
    holds_generations: bool = False
    """Sampling them, or frozen with them."""


def moves(standing: Standing, lease: Lease) -> tuple[Move, ...]:
    """What brings a worker from where it stands to what the lease says, in order."""
    wants_device = lease.run is not None and lease.role is Role.ROLLOUT
    plan: list[Move] = []
    is_leaving = standing.run is not None and standing.run != lease.run
    if is_leaving:
        plan += [Move.STOP, Move.HAND_BACK, *([Move.RELEASE] if standing.holds_device else []), Move.LEAVE]
    if lease.run is not None and standing.run != lease.run:
        plan.append(Move.JOIN)
    if wants_device:
        plan += [Move.TAKE, Move.PULL]
    elif lease.run is not None:
        if not is_leaving and standing.run is not None:
            plan += _let_go(standing, lease)
        plan.append(Move.RELEASE)
    return tuple(plan)


def _let_go(standing: Standing, lease: Lease) -> list[Move]:
    if lease.hand_back and (standing.holds_device or standing.holds_generations):
        return [Move.STOP, Move.HAND_BACK]
    return [Move.STOP, Move.FREEZE] if standing.holds_device else []
