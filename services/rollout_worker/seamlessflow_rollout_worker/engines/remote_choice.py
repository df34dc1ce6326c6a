"""Which of several servers takes a request: the one that has most of its beginning, unless that has much more to do. Pure.

A beginning is known by blocks: of each block of BLOCK tokens a digest of everything up to its end, and the server that had it
last. What siblings of a group and the next turn of an episode share is more than half of their prompt; a system text that
all agents share is less, and must not draw all of them to one server.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence

BLOCK = 32
"""Tokens."""
MOST_BLOCKS = 1 << 16
"""Remembered, over all servers: two million tokens; about 10 MB."""
SHARE = 0.5
"""A server that had less than this share of a prompt is no better than another."""
SLACK = 4
"""Requests that a server may have more than the least loaded one, for the sake of what it remembers."""


class Affinity:
    """What was sent where."""

    def __init__(self, most_blocks: int = MOST_BLOCKS) -> None:
        self._most_blocks = most_blocks
        self._server_of: OrderedDict[int, int] = OrderedDict()

    def note(self, ids: Sequence[int], server: int) -> None:
        """``server`` has these ids now."""
        for key in _keys(ids):
            self._server_of[key] = server
            self._server_of.move_to_end(key)
        while len(self._server_of) > self._most_blocks:
            self._server_of.popitem(last=False)

    def forget(self) -> None:
        """The servers' caches are of other weights now."""
        self._server_of.clear()

    def server_of(self, ids: Sequence[int]) -> int | None:
        """Who had the longest beginning of these ids, if that is worth anything."""
        best, num_blocks = None, 0
        for key in _keys(ids):
            server = self._server_of.get(key)
            if server is None:
                break
            best, num_blocks = server, num_blocks + 1
        return best if num_blocks * BLOCK >= SHARE * len(ids) else None


def chosen(loads: Mapping[int, int], favourite: int | None) -> int | None:
    """The favourite, if it is there and not too busy, else the least loaded (the first of several). None: there are none.

    loads: requests at each server that can take one.
    """
    if not loads:
        return None
    least = min(loads.values())
    if favourite is not None and favourite in loads and loads[favourite] <= least + SLACK:
        return favourite
    return min(loads, key=lambda server: (loads[server], server))


def _keys(ids: Sequence[int]) -> Iterator[int]:
    """A digest of each beginning that ends with a whole block. Python's own hash of numbers: the same within a process."""
    key = 0
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        key = hash((key, tuple(ids[end - BLOCK : end])))
        yield key
