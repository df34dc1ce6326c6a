"""Before an engine can start: wait for the trainer's model folder and first weights, saying so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from seamlessflow.bus.base import Bus
from seamlessflow.errors import SeamlessFlowError

from .head import Head
from .reading import VersionReader
from .versions import Fetched, LocalVersions

log = structlog.get_logger()

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
