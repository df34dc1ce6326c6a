"""A bucket in memory. ``MemoryBucket`` is shared by the clients of one server; it is its own key-value client."""

from __future__ import annotations

import time
from dataclasses import dataclass

from seamlessflow.bus.base import Entry
from seamlessflow.bus.keys import checked_key, checked_ttl
from seamlessflow.errors import SequenceMismatch


@dataclass(frozen=True, slots=True)
class _Value:
    entry: Entry
    ends_at: float


class MemoryBucket:
    def __init__(self, name: str) -> None:
        self._name = name
        self._values: dict[str, _Value] = {}
        self._revision = 0

    async def get(self, key: str) -> Entry | None:
        value = self._values.get(checked_key(self._name, key))
        return value.entry if value is not None and value.ends_at > time.monotonic() else None

    async def put(self, key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        ttl = checked_ttl(checked_key(self._name, key), ttl_seconds)
        self._revision += 1
        ends_at = float("inf") if ttl is None else time.monotonic() + ttl
        self._values[key] = _Value(Entry(key, value, self._revision), ends_at)
        return self._revision

    async def create(self, key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        return await self._put_over(0, key, value, ttl_seconds)

    async def update(self, key: str, value: bytes, revision: int, *, ttl_seconds: int | None = None) -> int:
        return await self._put_over(revision, key, value, ttl_seconds)

    async def delete(self, key: str) -> None:
        self._values.pop(checked_key(self._name, key), None)

    async def entries(self) -> list[Entry]:
        live = (value for value in self._values.values() if value.ends_at > time.monotonic())
        return [value.entry for value in sorted(live, key=lambda each: each.entry.revision)]

    async def _put_over(self, revision: int, key: str, value: bytes, ttl_seconds: int | None) -> int:
        held = await self.get(key)
        held_revision = held.revision if held is not None else 0
        if held_revision != revision:
            raise SequenceMismatch(f"{self._name}/{key} is at revision {held_revision}, not {revision}; nothing changed")
        return await self.put(key, value, ttl_seconds=ttl_seconds)
