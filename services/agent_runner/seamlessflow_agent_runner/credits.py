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


def external_credits(
    held: Mapping[str, int], unclaimed: Mapping[str, int], missing: Mapping[str, int], total: int
) -> dict[str, int]:
    """Credit of each environment of external agents: what it holds, and what somebody waits for, as long as there are places.

    held: deliveries in hand. unclaimed: those of them that are no running episode. missing: how many more are waited for.
    total: places of this runner for external agents.
    """
    free = total - sum(held[env] - unclaimed[env] for env in held)
    credits = {}
    for env in held:
        more = max(0, min(missing[env], free))
        free -= more
        credits[env] = held[env] + more
    return credits
