"""Bringing a version here: under a lease, so that nobody removes it meanwhile; and said where the store did not give it.

Where this machine's disk refused it nothing is said: the trainer would publish in full, which needs no less room.
"""

from __future__ import annotations

import asyncio

from seamlessflow.bus.base import Bus
from seamlessflow.contracts import WeightsHead
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.weights.downloads import DiskTrouble
from seamlessflow.weights.readers import Reader

from .versions import Fetched, LocalVersions


class VersionReader:
    """Reads versions of one run. ``reader``: this worker's instance."""

    def __init__(self, bus: Bus, versions: LocalVersions, run: str, reader: str) -> None:
        self._versions, self._reader = versions, Reader(bus, run, reader)

    async def fetch(self, head: WeightsHead) -> Fetched:
        """As ``LocalVersions.fetch``; a newer version than ``head`` where that was overtaken meanwhile.

        Who is cancelled lets go of the lease: what its thread still reads is thrown away.
        """
        async with self._reader.lease(head) as leased:
            try:
                fetched = await asyncio.to_thread(self._versions.fetch, leased)
            except DiskTrouble:
                raise
            except (SeamlessFlowError, FileNotFoundError) as wrong:
                await self._reader.missed(leased.weights_version, leased.path, str(wrong))
                raise
            finally:
                self._versions.give_up()  # where this was cancelled its thread goes on, until it looks
        if fetched.weights_version < leased.weights_version:
            why = f"version {fetched.weights_version} was taken in its place"
            await self._reader.missed(leased.weights_version, leased.path, why)
        else:
            await self._reader.got()
        return fetched
