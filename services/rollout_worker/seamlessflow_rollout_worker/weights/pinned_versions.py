"""Episodes that keep their weights version, seen from one worker: which versions it has, and whose generations it takes.

lease ─▶ keeps ─▶ not here? fetched (of the store, under a reader's lease) and loaded beside the newest
      └▶ let_go ─▶ nobody has it: its generations go on under the newest, which is logged and counted
versions it has ─▶ tags it pulls, and its presence, at once

A tag names a slot, not a version, so what comes by one may keep another version of the slot: it is handed back, and the
scheduler sees to it that no two nodes keep two versions of a slot for long. A version that is to be kept and cannot be had is
as if let go: its tag is pulled here all the same, for nobody else would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum

import structlog

from seamlessflow.bus.base import Bus
from seamlessflow.contracts import GenerationRequested, Lease, WeightsHead, WeightsPublished
from seamlessflow.contracts.tags import slot_of
from seamlessflow.runtime import Journal
from seamlessflow.telemetry import count
from seamlessflow.weights.reader_leases import Reader
from seamlessflow_rollout_worker.engines.two_version_engine import TwoVersions

from .local_versions import Fetched, LocalVersions
from .update_deadlines import Step, StepFailed, within
from .updater import WeightsFollower

log = structlog.get_logger()

LOOK_SECONDS = 0.5
TRIES = 5
"""Of bringing an older version here, each twice as long after the one before. Then episodes that keep it go on under the
newest, instead of waiting for it; at once where it is gone."""


class Place(Enum):
    """Under what a generation is sampled here."""

    ITS_OWN = "its own version"
    NEWEST = "the newest version"
    ELSEWHERE = "not here, or not yet"


class Keeping:
    """One run's, of a worker whose engine has started. ``on_change``: other tags are to be pulled than before."""

    def __init__(
        self,
        engine: TwoVersions,
        bus: Bus,
        journal: Journal,
        versions: LocalVersions,
        follower: WeightsFollower,
        *,
        run: str,
        worker: str,
        version_slots: int,
        deadlines: Mapping[Step, float],
        on_change: Callable[[], None],
    ) -> None:
        self._engine, self._journal, self._versions, self._follower = engine, journal, versions, follower
        self._reader = Reader(bus, run, worker)
        self._run, self._version_slots, self._deadlines, self._on_change = run, version_slots, deadlines, on_change
        self._let_go: frozenset[int] = frozenset()
        self._failures: dict[int, int] = {}
        """How often the version that is to be kept could not be had; TRIES: it is given up."""
        self._wake = asyncio.Event()

    def heed(self, lease: Lease) -> None:
        """What the newest lease says of versions."""
        self._engine.keeps, self._let_go = lease.keeps, frozenset(lease.let_go)
        self._failures = {version: times for version, times in self._failures.items() if version == lease.keeps}
        self._wake.set()

    def place(self, request: GenerationRequested) -> Place:
        """Whether and how a generation is sampled here. Newer weights that it asks for are looked for."""
        version = request.weights_version
        if version in self._engine.held:
            return Place.ITS_OWN
        if version is None or version in self._let_go or self._is_out_of_reach(version):
            return Place.NEWEST
        if version > self._engine.weights_version:
            self._follower.poke()
        return Place.ELSEWHERE

    def let_go(self, request: GenerationRequested) -> None:
        """A generation goes on under another version than its episode's: said and counted."""
        if request.weights_version is None:
            return
        count("generations_let_go")
        log.info(
            "generation.version_let_go",
            episode=request.episode,
            generation=request.generation,
            weights_version=request.weights_version,
            now=self._engine.weights_version,
        )

    def tags(self, tags: Sequence[str]) -> tuple[str, ...]:
        """Those of a lease's tags whose generations are for this worker now."""
        kept = [version for version in (self._engine.keeps,) if version is not None and self._is_out_of_reach(version)]
        slots = {version % self._version_slots for version in (*self._engine.held, *self._let_go, *kept)}
        return tuple(tag for tag in tags if slot_of(tag) in slots)

    async def run(self) -> None:
        """Bring here what is to be kept, until cancelled. Raises EngineError when the engine died of it."""
        while True:
            self._wake.clear()
            version = self._engine.keeps
            if version is not None and self._is_missing(version):
                await self._bring(version)
            num_failures = 0 if version is None or self._is_out_of_reach(version) else self._failures.get(version, 0)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS * 2**num_failures):
                    await self._wake.wait()

    def _is_out_of_reach(self, version: int) -> bool:
        return self._failures.get(version, 0) >= TRIES

    def _is_missing(self, version: int) -> bool:
        is_here = version in self._engine.held or version >= self._engine.weights_version
        return not (is_here or self._is_out_of_reach(version) or self._follower.is_frozen)

    async def _bring(self, version: int) -> None:
        try:
            async with self._follower.fetching_older():  # until it is loaded: who fetches removes older files
                fetched = await within(self._deadlines[Step.FETCH], Step.FETCH, self._fetch(version))
                for step, work in ((Step.READ, self._engine.stage_weights), (Step.LOAD, self._engine.load_weights)):
                    if self._engine.keeps != version or self._follower.is_frozen:
                        return
                    await within(self._deadlines[step], step, work(fetched.weights_file, weights_version=version))
        except StepFailed as failure:
            self._count_failure(version, failure)
        else:
            log.info("weights.kept", run=self._run, weights_version=version, fetch_seconds=fetched.fetch_seconds)

    def _count_failure(self, version: int, failure: StepFailed) -> None:
        is_gone = isinstance(failure.__cause__, FileNotFoundError)
        times = self._failures[version] = TRIES if is_gone else self._failures.get(version, 0) + 1
        log.warning(
            "weights.not_kept",
            run=self._run,
            weights_version=version,
            reason=str(failure),
            now="its episodes go on under the newest" if times >= TRIES else "it is tried again",
        )
        if times >= TRIES:
            self._on_change()

    async def _fetch(self, version: int) -> Fetched:
        """Raises what ``LocalVersions.fetch`` does, and FileNotFoundError where another version was taken in its place."""
        published = await self._journal.first(WeightsPublished, self._run, weights_version=version)
        if published is None:
            raise FileNotFoundError(f"the journal does not say where weights version {version} is")
        head = WeightsHead(weights_version=version, step=published.step, path=published.path, epoch=0)
        async with self._reader.lease_one(version, published.path):
            try:
                fetched = await asyncio.to_thread(self._versions.fetch, head)
            finally:
                self._versions.give_up()  # where this was cancelled its thread goes on, until it looks
        if fetched.weights_version != version:
            raise FileNotFoundError(f"weights version {version} is not in the store any more")
        return fetched
