"""Affinity: which node owns a bucket, and which bucket an episode has. Pure.

A bucket has a *home* among all nodes that may ever roll out, and its owner is its home while that rolls out, else another
node that does. Homes follow from names alone (rendezvous hashing, each node with its share and no more), so no state
is needed: a node that comes back from training gets its own buckets again, and those of others stay.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from seamlessflow.contracts import EpisodeEnded
from seamlessflow.contracts.streams import unowned_bucket

SEVERAL_CALLS = 1.5
"""Mean calls of an environment's episodes from which on they are episodes of several turns; a call
repeated now and then makes none."""


@lru_cache(maxsize=64)
def owners(num_buckets: int, able: tuple[str, ...], rolling: tuple[str, ...]) -> Mapping[str, tuple[int, ...]]:
    """The buckets of each node that rolls out, as even as can be: each bucket has exactly one owner.

    able: nodes that may roll out, now or later. rolling: those that do now, some of ``able``. Empty when none does.
    """
    if not rolling:
        return MappingProxyType({})
    home: dict[int, str] = {}
    _place(range(num_buckets), able, num_buckets, home)
    there = set(rolling)
    owner = {bucket: name for bucket, name in home.items() if name in there}
    _place([bucket for bucket in range(num_buckets) if bucket not in owner], rolling, num_buckets, owner)
    owned: dict[str, list[int]] = {name: [] for name in rolling}
    for bucket in range(num_buckets):
        owned[owner[bucket]].append(bucket)
    return MappingProxyType({name: tuple(buckets) for name, buckets in owned.items()})


def _place(free: Sequence[int], names: Sequence[str], num_buckets: int, owner: dict[int, str]) -> None:
    """Give each free bucket to the node that ranks first for it, of those with room; ``owner`` is added to."""
    least, spare = divmod(num_buckets, len(names))
    load = dict.fromkeys(names, 0)
    for name in owner.values():
        load[name] += 1
    spare -= sum(count > least for count in load.values())
    for bucket in free:
        with_room = (name for name in names if load[name] < least or (load[name] == least and spare > 0))
        chosen = max(with_room, key=lambda name: _rank(name, bucket))
        spare -= load[chosen] == least
        load[chosen] += 1
        owner[bucket] = chosen


def _rank(name: str, bucket: int) -> tuple[int, str]:
    """The same in every process, and another order of nodes for each bucket."""
    return zlib.crc32(f"{name}/{bucket}".encode()) * 0x9E3779B1 % 2**32, name


@dataclass
class CallStatistics:
    """How many calls the episodes of each environment took, from their ends. A fold; each end must be counted once."""

    _by_env: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Episodes that called, and their calls."""

    def ended(self, end: EpisodeEnded) -> None:
        """Count an ended episode; one without a call does not count, as it was not begun."""
        if end.num_calls:
            episodes, calls = self._by_env.get(end.origin.env, (0, 0))
            self._by_env[end.origin.env] = episodes + 1, calls + end.num_calls

    def is_one(self, env: str) -> bool:
        """Whether its episodes are one call each, which share only their group's prompt. False while none has ended."""
        episodes, calls = self._by_env.get(env, (0, 0))
        return episodes > 0 and calls < SEVERAL_CALLS * episodes

    def bucket(self, env: str, group_bucket: int, num_buckets: int) -> int:
        """The bucket of an episode's first call: its group's where only prompts are shared, else the unowned bucket.

        From the unowned bucket any node with room takes it, so members of a group, which are long together, are on many nodes.
        A later attempt may have another bucket than the first, where more is known of its environment by then.
        """
        unowned = unowned_bucket(num_buckets)
        return group_bucket if unowned is None or self.is_one(env) else unowned
