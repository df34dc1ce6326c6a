"""The newest complete version of a run's weights: a key that is read, never trusted to be watched."""

from __future__ import annotations

from seamlessflow.bus.base import Bus, KeyValue
from seamlessflow.codec import unpack_record
from seamlessflow.contracts import WeightsHead
from seamlessflow.contracts.routes import WEIGHTS_BUCKET


class Head:
    """The head of one run. The trainer alone writes it."""

    def __init__(self, bus: Bus, run: str) -> None:
        self._bus, self._run = bus, run
        self._bucket: KeyValue | None = None

    async def read(self) -> WeightsHead | None:
        """None when nothing was published yet. Raises Unavailable."""
        self._bucket = self._bucket or await self._bus.kv(WEIGHTS_BUCKET)
        entry = await self._bucket.get(self._run)
        return None if entry is None else unpack_record(WeightsHead, entry.value)
