"""The steps of an update of the weights: each has a deadline, and a culprit when it does not end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping
from enum import StrEnum
from typing import TypeVar

from seamlessflow.errors import SeamlessFlowError
from seamlessflow.weights.download import DiskTrouble
from seamlessflow_rollout_worker.engines.base import EngineError

T = TypeVar("T")

FIRST_REST_SECONDS = 1.0
LONGEST_REST_SECONDS = 60.0
"""How long a version that failed is left alone: doubled at each failure, forgotten when the head moves."""

OWN_DISK = "disk of this machine"
"""Who is to blame when a version came and could not be written."""


class Step(StrEnum):
    """Where an update is; the value names who is to blame when it stays there."""

    FETCH = "object store"
    READ = "engine, reading the fetched file"
    PAUSE = "engine, pausing"
    LOAD = "engine, copying"
    RESUME = "engine, resuming"


DEADLINE_SECONDS: Mapping[Step, float] = {
    Step.FETCH: 900.0,
    Step.READ: 120.0,
    Step.PAUSE: 60.0,
    Step.LOAD: 120.0,
    Step.RESUME: 60.0,
}


class StepFailed(SeamlessFlowError):
    """A step of an update failed or took too long."""

    def __init__(self, step: Step, reason: str, culprit: str | None = None) -> None:
        self.step, self.culprit = step, culprit or step.value
        super().__init__(f"{step.name.lower()} ({self.culprit}): {reason}")


async def within(limit_seconds: float, step: Step, work: Awaitable[T]) -> T:
    """Raises StepFailed when a step fails or takes too long; EngineError when the engine is dead."""
    try:
        async with asyncio.timeout(limit_seconds):
            return await work
    except TimeoutError as wrong:
        raise StepFailed(step, f"not done after {limit_seconds:g} s") from wrong
    except EngineError:
        raise
    except Exception as wrong:  # the store, the file and the engine raise what they like; each means a failed step
        culprit = OWN_DISK if isinstance(wrong, DiskTrouble) else None
        raise StepFailed(step, f"{type(wrong).__name__}: {wrong}", culprit) from wrong


class Setbacks:
    """Which version failed last, and until when it is left alone."""

    def __init__(self) -> None:
        self._weights_version = -1
        self._rest_seconds = FIRST_REST_SECONDS
        self._until = 0.0

    def note(self, weights_version: int) -> float:
        """It failed now; returns how long it rests."""
        is_again = weights_version == self._weights_version
        self._rest_seconds = min(2 * self._rest_seconds, LONGEST_REST_SECONDS) if is_again else FIRST_REST_SECONDS
        self._weights_version, self._until = weights_version, time.monotonic() + self._rest_seconds
        return self._rest_seconds

    def is_resting(self, weights_version: int) -> bool:
        """A newer version never rests for an older one's failure."""
        return weights_version == self._weights_version and time.monotonic() < self._until
