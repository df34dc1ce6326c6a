"""Nodes that come and go in a simulated run. Pure: the same nodes, pace and seed give the same deaths."""

from __future__ import annotations

import random

from .simulator_scene import Change, node_name

LONGEST_SECONDS = 86_400.0
"""Virtual ones, after which nobody dies any more: longer than any cell takes in which steps are taken."""


def churn(nodes: int, every_seconds: float, *, seed: int = 0, until: float = LONGEST_SECONDS) -> tuple[Change, ...]:
    """Every so many seconds one of the living nodes dies, whichever it is (the trainer's, too), and a new one joins at once.

    nodes: of the fleet at its beginning, named as a scene names them. Raises ValueError on a pace that is not above 0.
    """
    if every_seconds <= 0:
        raise ValueError(f"a node cannot die every {every_seconds} s: expected a number above 0")
    dice = random.Random(seed)
    living = [node_name(number) for number in range(nodes)]
    changes: list[Change] = []
    for number in range(1, int(until / every_seconds) + 1):
        at, place, new = number * every_seconds, dice.randrange(nodes), node_name(nodes + number - 1)
        changes += [Change(at, living[place], joins=False), Change(at, new, joins=True)]
        living[place] = new
    return tuple(changes)
