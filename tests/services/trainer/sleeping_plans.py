"""What befalls the lives of one order: a plan for each seed. Not a test."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.services.trainer.sleeping_lives import Fault, Misfortune

MOST_POINTS = 220
"""A few more than a life has that takes all steps alone."""
FAULTS = {
    Fault.STOPPED: 5, Fault.HANGS: 4, Fault.CUT_OFF: 3, Fault.NO_STORE: 1, Fault.LEFT_BEHIND: 2, Fault.KILLED: 3,
    Fault.TERMINATED: 1, Fault.MOVED: 2,
}  # fmt: skip
"""How often each occurs, by weight."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is decided about an order beforehand."""

    seed: int
    every_steps: int
    lives: tuple[tuple[Misfortune, ...], ...]
    """Of each life in turn; () for the last one."""
    is_one_node: bool
    """Every life has the same node's name, so that the lease stays as it is when the next one starts."""
    first_is_last: bool
    """The lease goes back to the first life in the end, if that is there."""
    is_stopped: bool
    """The run is stopped instead of a last life: the scheduler closes it while others sleep."""
    scheduler: tuple[Misfortune, ...]
    """Of the first one that closes the run."""
    longest_delays: tuple[float, ...]
    """Seconds: a call is delayed by up to one of these."""
    lease_moves_after: float
    """Seconds from a misfortune to the next life's lease."""


def plan_of(seed: int) -> Plan:
    """Misfortunes at any point of the first life, and often one of the second."""
    random = Random(seed)
    faults, weights = zip(*FAULTS.items(), strict=True)

    def misfortune() -> Misfortune:
        [fault] = random.choices(faults, weights)
        wakes_after = None if random.random() < 0.25 else int(random.triangular(1, MOST_POINTS / 2, 10))
        moves_lease = fault is not Fault.LEFT_BEHIND or random.random() < 0.5
        return Misfortune(fault, random.randint(1, MOST_POINTS), wakes_after, moves_lease)

    first = (misfortune(), misfortune()) if random.random() < 0.2 else (misfortune(),)
    lives: list[tuple[Misfortune, ...]] = [first]
    if random.random() < 0.6:
        lives.append((misfortune(),))
    fault = random.choice((Fault.STOPPED, Fault.KILLED, None, None, None))
    scheduler = () if fault is None else (Misfortune(fault, random.randint(1, 24)),)
    return Plan(
        seed=seed,
        every_steps=random.choice((1, 1, 2)),
        lives=(*lives, ()),
        is_one_node=random.random() < 0.2,
        first_is_last=random.random() < 0.15,
        is_stopped=random.random() < 0.15,
        scheduler=scheduler,
        longest_delays=random.choice(((0.0,), (0.0, 0.0, 0.001), (0.0, 0.0, 0.0, 0.01, 1.5), (0.0,) * 9 + (0.3, 3.0))),
        lease_moves_after=random.choice((0.0, 0.0, 0.5, 3.0)),
    )
