"""Which weights version an episode keeps, in a run with ``weights.pinned``: the newest that was loaded at its first call.

    first call ─▶ the last WeightsLoaded in the journal ─▶ CallRequested.weights_version, and the slot in its tag
    later calls ─▶ the same

Where no load was ever said for a minute (that word may be lost, versions are not) it is the last that was published.

It is decided here and nowhere else, and stands in every CallRequested: an attempt has one runner, so calls that it makes
side by side agree, and who replays the journal decides nothing. Under a version that was loaded somebody can sample at once;
one that was only published would be waited for.
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
"""For how long what one episode saw is good for the next; and how often an episode looks that comes before any weights."""
UNSAID_SECONDS = 60.0
"""Who loads weights says so once, and samples on where the journal is away: with one worker nobody would say it again."""


class Pinning:
    """One run's. ``on_change`` is told which versions live episodes keep, whenever that changes; oldest first."""

    def __init__(self, journal: Journal, run: str, version_slots: int, on_change: Callable[[tuple[int, ...]], None]) -> None:
        self.version_slots = version_slots
        self._journal, self._run, self._on_change = journal, run, on_change
        self._kept: Counter[int] = Counter()
        self._turn = asyncio.Lock()
        self._newest: int | None = None
        self._looked_at = -FRESH_SECONDS

    async def newest(self) -> int:
        """The newest version that any worker ever loaded. Waits for the first; a journal that is away is waited for, too."""
        began = time.monotonic()
        while True:
            async with self._turn:
                if time.monotonic() - self._looked_at >= FRESH_SECONDS:
                    await self._look()
                if self._newest is not None:
                    return self._newest
                if time.monotonic() - began >= UNSAID_SECONDS and (published := await self._published()) is not None:
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
            await asyncio.sleep(RETRY_SECONDS)  # whoever else asks waits as well
            return
        self._looked_at = time.monotonic()
        if loaded is not None:  # who comes late may load an older one than others did before
            self._newest = max(loaded.weights_version, -1 if self._newest is None else self._newest)

    def note(self, weights_version: int, count: int) -> None:
        """``count`` more episodes keep a version, or fewer where it is negative."""
        before = self._versions
        self._kept[weights_version] += count
        if self._versions != before:
            self._on_change(self._versions)

    @property
    def _versions(self) -> tuple[int, ...]:
        return tuple(sorted(version for version, count in self._kept.items() if count > 0))


class Pin:
    """One episode's."""

    def __init__(self, pinning: Pinning) -> None:
        self._pinning = pinning
        self._turn = asyncio.Lock()
        self._version: int | None = None
        self._is_over = False

    async def on(self, event: CallRequested) -> CallRequested:
        """A call of the episode, with the version that it keeps: decided now, if it is the first one."""
        async with self._turn:
            if self._version is None:
                version = max(await self._pinning.newest(), event.min_weights_version)
                self._version = version
                if not self._is_over:
                    self._pinning.note(version, 1)
        tag = slot_tag(event.tag, self._version % self._pinning.version_slots)
        return event.model_copy(update={"tag": tag, "weights_version": self._version})

    def release(self) -> None:
        """The episode is over: nobody keeps its version for it."""
        if self._version is not None and not self._is_over:
            self._pinning.note(self._version, -1)
        self._is_over = True
