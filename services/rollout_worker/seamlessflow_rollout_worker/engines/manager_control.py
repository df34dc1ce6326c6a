"""Standing still: transformers' ``manager.pause()``, a block of one thread, as pause and resume of an asyncio loop.

A pause belongs to the thread that entered it, and ``stop`` from within one is an error. So one thread enters, leaves,
stops and exchanges weights, in the order it is asked to; the loop only waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from seamlessflow_rollout_worker.engines.base import EngineError
from seamlessflow_rollout_worker.engines.front import NOT_PAUSED, died_of
from seamlessflow_rollout_worker.engines.paged_manager import pass_barrier, start_manager


class ManagerControl:
    """One manager's pauses and its end. Every method raises EngineError when the manager has died."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._held: AbstractContextManager[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine-control")

    async def start(self) -> None:
        await self._run(partial(start_manager, self._manager))

    async def stop(self) -> None:
        """End the manager's thread, paused or not; requests that have not ended fail. Not to be used afterwards."""

        def stop() -> None:
            self._release()
            self._manager.stop(block=True, hard_stop=True)

        await self._run(stop)
        self._thread.shutdown(wait=False)

    async def pause(self) -> None:
        """Returns between two passes; idempotent."""

        def hold() -> None:
            if self._held is None:
                pause = self._manager.pause()
                pause.__enter__()
                self._held = pause

        await self._run(hold)

    async def resume(self) -> None:
        await self._run(self._release)

    async def while_paused(self, job: Callable[[], None]) -> None:
        """Run ``job`` while the manager stands still; EngineError when it does not."""

        def run() -> None:
            if self._held is None:
                raise EngineError(NOT_PAUSED)
            job()

        await self._run(run)

    async def barrier(self) -> None:
        """Returns between two passes, which go on; at once while paused. Does not wait for other control jobs."""
        await asyncio.to_thread(_clearly, partial(pass_barrier, self._manager))

    def _release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            held.__exit__(None, None, None)

    async def _run(self, job: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, _clearly, job)


def _clearly(job: Callable[[], None]) -> None:
    """The manager says RuntimeError when its thread is gone, with the reason as the cause."""
    try:
        job()
    except RuntimeError as error:
        raise died_of(error.__cause__ or error) from error
