"""The newest complete version of a run's weights: a key that is read, never trusted to be watched."""

from __future__ import annotations

import structlog

from seamlessflow.bus.base import Bus, KeyValue
from seamlessflow.codec import unpack_record
from seamlessflow.contracts import WeightsHead
from seamlessflow.contracts.routes import WEIGHTS_BUCKET

log = structlog.get_logger()


class Head:
    """The head of one run. The trainer alone writes it."""

    def __init__(self, bus: Bus, run: str) -> None:
        self._bus, self._run = bus, run
        self._bucket: KeyValue | None = None
        self._went_back_to: int | None = None

    async def read(self) -> WeightsHead | None:
        """None when nothing was published yet. Raises Unavailable."""
        self._bucket = self._bucket or await self._bus.kv(WEIGHTS_BUCKET)
        entry = await self._bucket.get(self._run)
        return None if entry is None else unpack_record(WeightsHead, entry.value)

    def is_new(self, head: WeightsHead, *, newest_here: int) -> bool:
        """Whether it is newer than what is here. One that is older is never taken, and said once: its writer is wrong."""
        version = head.weights_version
        went_back_to = version if version < newest_here else None
        if went_back_to not in (None, self._went_back_to):
            log.warning("weights.head_went_back", run=self._run, weights_version=version, newest_here=newest_here)
        self._went_back_to = went_back_to
        return version > newest_here
