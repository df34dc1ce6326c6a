"""How the runner's free places are shared among the queues of its environment tags. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def shared_credits(running: Mapping[str, int], total: int) -> dict[str, int]:
    """Credit of each environment: what it runs now, plus its share of the free places.

    running: episodes being run, by environment tag. total: places of this runner.
    The credits sum to at most ``total`` (unless more runs already), so that what is pulled always has a place. The free
    places are dealt one by one to whoever runs least: an idle queue keeps a foot in the door, a busy one gets the rest.
    """
    credits = dict(running)
    free = max(0, total - sum(running.values()))
    order = sorted(running, key=lambda env: (running[env], env))
    for turn in range(free if order else 0):
        credits[order[turn % len(order)]] += 1
    return credits
