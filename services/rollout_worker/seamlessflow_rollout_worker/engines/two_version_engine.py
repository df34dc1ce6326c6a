"""Two engines of one kind as one that has two weights versions: a request is sampled under the version it names, to its end.

    generate(version 6) ─▶ engine a: 6          load 8 ─▶ into the one nobody keeps: 6 ends with INTERRUPTED, 7 samples on
    generate(newest)    ─▶ engine b: 7                    (keeps 6: into b, 7 ends with INTERRUPTED, 6 samples on)

Both are started with the first version, so a machine that has not the memory for two says so at once; the second is free
until a newer version comes. New weights pause nobody but what they replace: unlike a single engine, this one loads them while
it samples. What else ``Engine`` promises holds for each request. Each engine has all slots and a cache of its own; whoever
gives out requests keeps them to ``num_slots`` in all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, suppress
from pathlib import Path
from typing import cast

from seamlessflow.errors import BadInput

from .base import Chunk, CountsPrefixes, Engine, EngineError, Finish, KnowsCache, PrefixUse, SamplingParams

Change = Callable[[], None]


class TwoVersions:
    """Implements ``Engine``; see the module for what differs. ``on_change``: called when it has other versions than before."""

    def __init__(self, engines: tuple[Engine, Engine], on_change: Change = lambda: None) -> None:
        self.keeps: int | None = None
        """The older version that is not to be replaced. None: of two the older one is."""
        self._engines, self._on_change = engines, on_change
        self._versions: list[int | None] = [None, None]
        self._sides: dict[str, int] = {}
        """Which engine each running request is in."""
        self._heard_at = [0.0, 0.0]
        """When the last token of each came, or when there was last a reason for none."""
        self._staged: tuple[int, Path] | None = None
        self._is_paused = False
        self._turn = asyncio.Lock()
        """Pausing and resuming both never meets the loading of one."""

    @property
    def held(self) -> tuple[int, ...]:
        """Versions it can sample under, oldest first."""
        return tuple(sorted({version for version in self._versions if version is not None}))

    @property
    def weights_version(self) -> int:
        """The newest."""
        return max(self.held, default=self._engines[0].weights_version)

    @property
    def num_slots(self) -> int:
        return self._engines[0].num_slots

    @property
    def max_context_tokens(self) -> int:
        return min(engine.max_context_tokens for engine in self._engines)

    @property
    def prefix_use(self) -> PrefixUse | None:
        """Of both; None where they do not tell."""
        told = [engine.prefix_use for engine in self._engines if isinstance(engine, CountsPrefixes)]
        uses = [use for use in told if use is not None]
        if not uses:
            return None
        return PrefixUse(sum(use.prompt_tokens for use in uses), sum(use.cached_tokens for use in uses))

    @property
    def cache_tokens(self) -> int | None:
        """Of one: new episodes come to the engine that has the newest version. None where it cannot tell."""
        one = self._engines[0]
        return one.cache_tokens if isinstance(one, KnowsCache) else None

    @property
    def silent_seconds(self) -> float:
        """How long nothing came of one that has requests: it may hang while the other samples on. Meaningless while paused."""
        return max((time.monotonic() - self._heard_at[side] for side in set(self._sides.values())), default=0.0)

    async def start(self, model_dir: Path, *, weights_version: int) -> None:
        await self._engines[0].start(model_dir, weights_version=weights_version)
        try:
            await self._engines[1].start(model_dir, weights_version=weights_version)
        except BaseException:
            with suppress(EngineError):
                await self._engines[0].stop()
            raise
        self._versions, self._is_paused, self._staged = [weights_version, None], False, None
        self._on_change()

    async def stop(self) -> None:
        self._versions = [None, None]
        await self._all([engine.stop() for engine in self._engines])

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        """As ``Engine.generate``; a version that is not here (any more) ends with INTERRUPTED at once."""
        if request_id in self._sides:
            raise BadInput(f"Request {request_id} is already running; ids must be unique among running requests.")
        wanted = self.weights_version if params.weights_version is None else params.weights_version
        if self.held and wanted not in self._versions:
            yield Chunk((), (), self.weights_version, Finish.INTERRUPTED)
            return
        side = self._versions.index(wanted) if self.held else 0  # which then says that it is not running
        if side not in self._sides.values():
            self._heard_at[side] = time.monotonic()
        self._sides[request_id] = side
        chunks = cast("AsyncGenerator[Chunk, None]", self._engines[side].generate(request_id, prompt_ids, params))
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    self._heard_at[side] = time.monotonic()
                    yield chunk
        finally:
            del self._sides[request_id]

    async def interrupt(self, request_id: str) -> None:
        if request_id in self._sides:
            await self._engines[self._sides[request_id]].interrupt(request_id)

    async def pause(self) -> None:
        async with self._turn:
            self._is_paused = True
            await self._all([engine.pause() for engine in self._engines])

    async def resume(self) -> None:
        async with self._turn:
            await self._all([engine.resume() for engine in self._engines])
            self._samples_on()

    async def sleep(self) -> None:
        async with self._turn:
            self._is_paused = True
            await self._all([engine.sleep() for engine in self._engines])

    async def wake(self) -> None:
        async with self._turn:
            await self._all([engine.wake() for engine in self._engines])
            self._samples_on()

    def _samples_on(self) -> None:
        self._is_paused, self._heard_at = False, [time.monotonic()] * 2

    async def stage_weights(self, file: Path, *, weights_version: int | None = None) -> None:
        """None: of a version newer than both."""
        await self._stage(self._replaced_by(weights_version), file)

    async def load_weights(self, file: Path, *, weights_version: int) -> None:
        """Put a version in the place of one that nobody keeps, while the other samples; paused or not.

        Raises BadInput as ``stage_weights``: then nothing was copied, and nothing was interrupted unless it was staged before.
        """
        if weights_version not in self._versions and (self._replaced_by(weights_version), file) != self._staged:
            await self.stage_weights(file, weights_version=weights_version)  # before our turn: who pauses waits for no file
        async with self._turn:
            if weights_version in self._versions:
                return
            side = self._replaced_by(weights_version)
            if self._staged != (side, file):  # another one is to be kept meanwhile
                await self._stage(side, file)
            self._staged = None
            await self._replace(side, file, weights_version)

    async def _stage(self, side: int, file: Path) -> None:
        await self._engines[side].stage_weights(file)
        self._staged = (side, file)

    async def _replace(self, side: int, file: Path, weights_version: int) -> None:
        engine, before = self._engines[side], self._versions[side]
        self._versions[side] = None  # first: nothing new is begun there
        if before is not None:
            self._on_change()
        await self._all([engine.interrupt(each) for each, where in self._sides.items() if where == side])
        if not self._is_paused:
            await engine.pause()
        try:
            await engine.load_weights(file, weights_version=weights_version)
        except BadInput:  # nothing was copied; had it been cut short, nobody knew what it has, and it stays free and still
            if before is not None:
                await self._go_on(side, before)
            raise
        await self._go_on(side, weights_version)

    async def _go_on(self, side: int, weights_version: int) -> None:
        if not self._is_paused:
            await self._engines[side].resume()
        self._versions[side] = weights_version
        self._on_change()

    def _replaced_by(self, weights_version: int | None) -> int:
        """Which engine takes a version. None: one that is newer than both."""
        if None in self._versions:
            return self._versions.index(None)
        first, second = cast("list[int]", self._versions)
        older, newer = (0, 1) if first < second else (1, 0)
        if weights_version is not None and weights_version < max(first, second):
            return older
        return newer if self._versions[older] == self.keeps else older

    async def _all(self, work: list[Coroutine[None, None, None]]) -> None:
        """Side by side; one of their errors, once all have ended."""
        errors = [each for each in await asyncio.gather(*work, return_exceptions=True) if each is not None]
        if errors:
            raise errors[0]
