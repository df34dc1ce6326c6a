"""The weights version that an episode pins, in a run with ``weights.pinned``: the newest one loaded at its first call.

    first call ─▶ the last WeightsLoaded in the journal ─▶ CallRequested.weights_version, and the slot in its tag
    later calls ─▶ the same

Without any WeightsLoaded for a minute (that event may be lost, versions are not) it is the last published version.

It is decided only here, and stands in every CallRequested: an attempt has one runner, so its concurrent calls agree, and a
replay of the journal decides nothing. Workers can sample at once with a loaded version; a version that is only published
would have to be loaded first.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import structlog

from seamlessflow.contracts import CallRequested, WeightsLoaded, WeightsPublished
from seamlessflow.contracts.tags import slot_tag
from seamlessflow.errors import Unavailable
from seamlessflow.runtime import Journal

log = structlog.get_logger()

RETRY_SECONDS = 1.0
FRESH_SECONDS = 0.25
"""How long a version read for one episode holds for the next; and the polling interval before the first weights."""
UNREPORTED_SECONDS = 60.0
"""Wait for a first WeightsLoaded. A worker publishes it once, and samples on if the journal is unavailable: it may be lost."""


class Pinning:
    """Versions that live episodes of one run pin. ``on_change``: called with them, oldest first, on each change."""

    def __init__(self, journal: Journal, run: str, version_slots: int, on_change: Callable[[tuple[int, ...]], None]) -> None:
        self.version_slots = version_slots
        self._journal, self._run, self._on_change = journal, run, on_change
        self._kept: Counter[int] = Counter()
        self._turn = asyncio.Lock()
        self._newest: int | None = None
        self._looked_at = -FRESH_SECONDS

    async def newest(self) -> int:
        """The newest version that any worker ever loaded. Waits for the first one, and while the journal is unavailable."""
        began = time.monotonic()
        while True:
            async with self._turn:
                if time.monotonic() - self._looked_at >= FRESH_SECONDS:
                    await self._look()
                if self._newest is not None:
                    return self._newest
                if time.monotonic() - began >= UNREPORTED_SECONDS and (published := await self._published()) is not None:
                    log.warning("episode.loads_unsaid", run=self._run, weights_version=published)
                    return published
            await asyncio.sleep(FRESH_SECONDS)

    async def _published(self) -> int | None:
        with suppress(Unavailable):
            published = await self._journal.last(WeightsPublished, self._run)
            return None if published is None else published.weights_version
        return None

    async def _look(self) -> None:
        try:
            loaded = await self._journal.last(WeightsLoaded, self._run)
        except Unavailable as wrong:
            log.warning("episode.version_unknown", run=self._run, reason=str(wrong))
            await asyncio.sleep(RETRY_SECONDS)  # under the lock: other episodes wait as well
            return
        self._looked_at = time.monotonic()
        if loaded is not None:  # a late worker may load an older version than others did before
            self._newest = max(loaded.weights_version, -1 if self._newest is None else self._newest)

    def note(self, weights_version: int, count: int) -> None:
        """``count`` more episodes pin a version, or fewer where it is negative."""
        before = self._versions
        self._kept[weights_version] += count
        if self._versions != before:
            self._on_change(self._versions)

    @property
    def _versions(self) -> tuple[int, ...]:
        return tuple(sorted(version for version, count in self._kept.items() if count > 0))


class Pin:
    """The pinned version of one episode."""

    def __init__(self, pinning: Pinning) -> None:
        self._pinning = pinning
        self._turn = asyncio.Lock()
        self._version: int | None = None
        self._is_over = False

    async def on(self, event: CallRequested) -> CallRequested:
        """A call of the episode with its pinned version, which the first call decides."""
        async with self._turn:
            if self._version is None:
                version = max(await self._pinning.newest(), event.min_weights_version)
                self._version = version
                if not self._is_over:
                    self._pinning.note(version, 1)
        tag = slot_tag(event.tag, self._version % self._pinning.version_slots)
        return event.model_copy(update={"tag": tag, "weights_version": self._version})

    def release(self) -> None:
        """Release the version: the episode is over. Idempotent."""
        if self._version is not None and not self._is_over:
            self._pinning.note(self._version, -1)
        self._is_over = True
