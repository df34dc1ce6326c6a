"""Following the head: fetch while sampling goes on, pause for the copy alone.

    announced ─▶ fetch ─▶ read ─▶ pause ─▶ load ─▶ resume    every step has a deadline, and a culprit the log can name
        ▲          │        │       └───┬────┘        ▲
        │          │ store  │ engine    │ engine      └── always, once paused
        └──────────┴────────┴───────────┘  the version is skipped for a while, sampling goes on with the old one

The head is state, read twice a second; a hint only makes the next read come sooner. Whatever was published meanwhile, the
next version taken is the newest. While the device is somebody else's (``freeze``), versions are fetched and not loaded;
``thaw`` loads the newest before anything is sampled. Pausing and resuming happen here and nowhere else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import structlog

from seamlessflow.bus.base import Bus
from seamlessflow.contracts import WeightsLoaded
from seamlessflow.contracts.routes import HINT_WEIGHTS
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.runtime import Journal
from seamlessflow_rollout_worker.engines.base import Engine, EngineError

from .local_versions import Fetched, LocalVersions
from .store_reader import Head, VersionReader
from .update_deadlines import DEADLINE_SECONDS, Setbacks, Step, StepFailed, within

log = structlog.get_logger()

POLL_SECONDS = 0.5
THAW_FETCH_SECONDS = 60.0
"""How long a node that got its device back waits for the newest weights before it goes on with those it has."""


async def publish_loaded(
    journal: Journal, run: str, worker: str, fetched: Fetched, *, node: str, pause_seconds: float, num_frozen: int
) -> None:
    """Log and say WeightsLoaded. A journal that is away costs the event, not the sampling."""
    facts = {
        "weights_version": fetched.weights_version,
        "fetch_seconds": fetched.fetch_seconds,
        "pause_seconds": pause_seconds,
        "num_frozen": num_frozen,
    }
    log.info("weights.loaded", run=run, **facts)
    try:
        await journal.publish(WeightsLoaded.model_validate({"run": run, "worker": worker, "node": node, **facts}))
    except SeamlessFlowError as wrong:
        log.warning("weights.load_not_said", run=run, weights_version=fetched.weights_version, reason=str(wrong))


class WeightsFollower:
    """Keeps an engine at the newest weights of its run.

    fetched: the version the engine was started with. num_held: how many generations it holds now, for WeightsLoaded.
    on_thaw: called when the engine samples again, before ``is_frozen`` says so: its silence had a reason until now.
    pauses: False for an engine that loads new weights beside the old ones.
    """

    def __init__(
        self,
        engine: Engine,
        bus: Bus,
        journal: Journal,
        versions: LocalVersions,
        *,
        run: str,
        worker: str,
        node: str,
        num_held: Callable[[], int],
        on_thaw: Callable[[], None],
        fetched: Fetched | None = None,
        deadlines: Mapping[Step, float] = DEADLINE_SECONDS,
        pauses: bool = True,
    ) -> None:
        self._engine, self._bus, self._journal = engine, bus, journal
        self._reader = VersionReader(bus, versions, run, worker)
        self._run, self._worker, self._node, self._num_held = run, worker, node, num_held
        self._deadlines, self._on_thaw, self._fetched = deadlines, on_thaw, fetched
        self._pauses = pauses
        self._is_frozen = False
        self._is_asleep = False
        self._fetching = asyncio.Lock()
        self._fetches_older = False
        self._pausing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._head = Head(bus, run)
        self._setbacks = Setbacks()

    @property
    def is_frozen(self) -> bool:
        return self._is_frozen

    def poke(self) -> None:
        """Read the head now."""
        self._wake.set()

    @asynccontextmanager
    async def fetching_older(self) -> AsyncIterator[None]:
        """While a version is fetched that is to be kept beside the newest: no other is, and ``thaw`` does not wait for it."""
        async with self._fetching:
            self._fetches_older = True
            try:
                yield
            finally:
                self._fetches_older = False

    async def run(self) -> None:
        """Follow until cancelled. Raises EngineError when the engine cannot be resumed."""

        async def on_hint(payload: bytes) -> None:
            self.poke()

        unsubscribe = await self._bus.on_hint(HINT_WEIGHTS.format(run=self._run), on_hint)
        try:
            while True:
                await self._follow_once()
                with suppress(TimeoutError):
                    # Not wait_for: before Python 3.12 it swallows a cancellation that meets the event.
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._wake.wait()
                self._wake.clear()
        finally:
            await unsubscribe()

    async def freeze(self, *, sleep: bool) -> None:
        """Stop sampling between two tokens, keeping what is held (sleep True: and free the device's memory).

        Raises EngineError when the engine does not obey."""
        async with self._pausing:
            self._is_frozen, self._is_asleep = True, sleep
            await self._or_dead(Step.PAUSE, self._engine.sleep() if sleep else self._engine.pause())

    async def thaw(self) -> None:
        """Load the newest weights, then sample again. Where they cannot be had in time, the old ones go on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if self._fetches_older else THAW_FETCH_SECONDS):
                await self._prefetch()
        ready = await self._stage_if_ahead()
        async with self._pausing:
            loads_at = time.monotonic()
            try:
                loaded = ready is not None and await self._load(ready)
            finally:
                await self._or_dead(Step.RESUME, self._engine.wake() if self._is_asleep else self._engine.resume())
                self._on_thaw()
                self._is_frozen = self._is_asleep = False
        if ready is not None and loaded:
            await self._say_loaded(ready, time.monotonic() - loads_at, self._num_held())

    async def _follow_once(self) -> None:
        await self._prefetch()
        if self._is_frozen or (ready := await self._stage_if_ahead()) is None:
            return
        async with self._pausing:
            if self._is_frozen:  # while we waited: thaw will load it
                return
            paused_at, num_held = time.monotonic(), self._num_held()
            loaded = await (self._swap(ready) if self._pauses else self._load(ready))
            pause_seconds = time.monotonic() - paused_at if self._pauses else 0.0
        if loaded:
            await self._say_loaded(ready, pause_seconds, num_held)

    async def _prefetch(self) -> None:
        """Have the newest version here, unless it failed a moment ago."""
        async with self._fetching:
            try:
                head = await self._head.read()
            except SeamlessFlowError as wrong:
                log.warning("weights.head_unreadable", run=self._run, reason=str(wrong))
                return
            if head is None or not self._head.is_new(head, newest_here=self._newest_here):
                return
            if self._setbacks.is_resting(head.weights_version):
                return
            try:
                self._fetched = await within(self._deadlines[Step.FETCH], Step.FETCH, self._reader.fetch(head))
            except StepFailed as failure:
                self._skip(head.weights_version, failure)

    async def _stage_if_ahead(self) -> Fetched | None:
        """A fetched version that the engine does not have yet, read by it; sampling goes on meanwhile."""
        fetched = self._fetched
        if fetched is None or fetched.weights_version <= self._engine.weights_version:
            return None
        try:
            await within(self._deadlines[Step.READ], Step.READ, self._engine.stage_weights(fetched.weights_file))
        except StepFailed as failure:
            self._skip(fetched.weights_version, failure)
            return None
        return fetched

    async def _swap(self, ready: Fetched) -> bool:
        try:
            await within(self._deadlines[Step.PAUSE], Step.PAUSE, self._engine.pause())
            return await self._load(ready)
        except StepFailed as failure:
            self._skip(ready.weights_version, failure)
            return False
        finally:
            await self._or_dead(Step.RESUME, self._engine.resume())

    async def _load(self, ready: Fetched) -> bool:
        version = ready.weights_version
        if version <= self._engine.weights_version:
            return False  # overtaken by a thaw while it was read
        try:
            loading = self._engine.load_weights(ready.weights_file, weights_version=version)
            await within(self._deadlines[Step.LOAD], Step.LOAD, loading)
        except StepFailed as failure:
            self._skip(version, failure)
            return False
        return True

    async def _or_dead(self, step: Step, work: Awaitable[None]) -> None:
        """A step that nothing works without. Raises EngineError."""
        try:
            await within(self._deadlines[step], step, work)
        except StepFailed as failure:
            raise EngineError(str(failure)) from failure

    @property
    def _newest_here(self) -> int:
        return max(self._engine.weights_version, -1 if self._fetched is None else self._fetched.weights_version)

    def _skip(self, weights_version: int, failure: StepFailed) -> None:
        """Leave a version alone for a while; a newer one is tried at once."""
        rest_seconds = self._setbacks.note(weights_version)
        self._fetched = None
        log.error(
            "weights.skipped",
            run=self._run,
            weights_version=weights_version,
            step=failure.step.name.lower(),
            culprit=failure.culprit,
            reason=str(failure),
            sampling_with=self._engine.weights_version,
            again_in_seconds=rest_seconds,
        )

    async def _say_loaded(self, ready: Fetched, pause_seconds: float, num_held: int) -> None:
        await publish_loaded(
            self._journal,
            self._run,
            self._worker,
            ready,
            node=self._node,
            pause_seconds=pause_seconds,
            num_frozen=num_held,
        )
