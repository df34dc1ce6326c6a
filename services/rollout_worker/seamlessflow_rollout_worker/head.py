"""The newest complete version of a run's weights: a key that is read, never trusted to be watched."""

from __future__ import annotations

import structlog

from seamlessflow.bus.base import Bus
from seamlessflow.contracts import WeightsHead
from seamlessflow.weights.readers import read_head

log = structlog.get_logger()


class Head:
    """The head of one run. The trainer alone writes it."""

    def __init__(self, bus: Bus, run: str) -> None:
        self._bus, self._run = bus, run
        self._went_back_to: int | None = None

    async def read(self) -> WeightsHead | None:
        """None when nothing was published yet. Raises Unavailable."""
        return await read_head(self._bus, self._run)

    def is_new(self, head: WeightsHead, *, newest_here: int) -> bool:
        """Whether it is newer than what is here. One that is older is never taken, and said once: its writer is wrong."""
        version = head.weights_version
        went_back_to = version if version < newest_here else None
        if went_back_to not in (None, self._went_back_to):
            log.warning("weights.head_went_back", run=self._run, weights_version=version, newest_here=newest_here)
        self._went_back_to = went_back_to
        return version > newest_here
