"""Keeps the embedded nats-server alive without holding up the event loop, which its clients share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from .bus.server import EmbeddedServer
from .errors import SeamlessFlowError
from .supervisor import FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, Say

LOOK_SECONDS = 0.2


class ServerKeeper:
    """Starts a server, restarts it on its port whenever it dies, and stops it.

    All of it in one thread of its own that lives until the server is stopped: to Linux that thread is the server's parent,
    with which it dies.
    """

    def __init__(self, server: EmbeddedServer, on_event: Say) -> None:
        self.server = server
        self._say = on_event
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nats-server")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when it answers. Raises ConfigError, Unavailable."""
        await self._in_thread(self.server.start)
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """No more restarts; SIGTERM, wait, SIGKILL. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._in_thread(self.server.stop)  # after a restart that may be under way there
        self._thread.shutdown(wait=False)

    async def _keep(self) -> None:
        backoff = 0.0
        while True:
            await asyncio.sleep(backoff or LOOK_SECONDS)
            if self.server.running:
                continue
            self._say("nats-server", "died, restarting on the same port")
            try:
                await self._in_thread(self.server.restart)
                backoff = 0.0
            except (SeamlessFlowError, OSError) as wrong:
                backoff = min(max(backoff * 2, FIRST_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS)
                self._say("nats-server", f"cannot be restarted, trying again in {backoff:.1f} s: {wrong}")

    async def _in_thread(self, work: Callable[[], object]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work)
