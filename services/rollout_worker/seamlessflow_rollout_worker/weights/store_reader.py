"""Before an engine can start: wait for the trainer's model folder and first weights, saying so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from seamlessflow.bus.base import Bus
from seamlessflow.contracts import WeightsHead
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.weights.download import DiskTrouble
from seamlessflow.weights.reader_leases import Reader, read_head

from .local_versions import Fetched, LocalVersions

# The newest complete version of a run's weights: a key that is read, never trusted to be watched.


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


# Bringing a version here: under a lease, so that nobody removes it meanwhile; and said where the store did not give it.
#
# Where this machine's disk refused it nothing is said: the trainer would publish in full, which needs no less room.


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


POLL_SECONDS = 0.25
SAY_EVERY = 40
"""Polls between two log lines about the same wait."""
LONGEST_REST_SECONDS = 10.0


async def first_weights(
    bus: Bus, versions: LocalVersions, run: str, on_state: Callable[[str], None], *, worker: str
) -> Fetched:
    """The newest version and the model's config and tokenizer, in one folder. Waits for as long as it takes."""
    head, num_polls, rest_seconds = Head(bus, run), 0, POLL_SECONDS
    reader = VersionReader(bus, versions, run, worker)
    while True:
        try:
            fetched, missing = await _try(head, versions, reader)
            rest_seconds = POLL_SECONDS
        except (SeamlessFlowError, FileNotFoundError) as wrong:
            fetched, missing = None, str(wrong)
            rest_seconds = min(2 * rest_seconds, LONGEST_REST_SECONDS)
            log.warning("weights.unusable", run=run, reason=missing, again_in_seconds=rest_seconds)
        if fetched is not None:
            return fetched
        if num_polls % SAY_EVERY == 0:
            on_state(f"waits for {missing}")
            log.info("weights.awaited", run=run, missing=missing)
        num_polls += 1
        await asyncio.sleep(rest_seconds)


async def _try(head: Head, versions: LocalVersions, reader: VersionReader) -> tuple[Fetched | None, str]:
    """The first weights, or what is missing."""
    if not await asyncio.to_thread(versions.model_is_there):
        return None, "the trainer's model folder"
    newest = await head.read()
    if newest is None:
        return None, "the first weights"
    fetched = await reader.fetch(newest)
    await asyncio.to_thread(versions.add_model, fetched)
    return fetched, ""
