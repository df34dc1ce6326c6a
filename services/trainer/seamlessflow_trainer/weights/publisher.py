"""Weights into the store, and the head that makes workers load them.

    files, manifest last  ──▶  WeightsPublished (by claim)  ──▶  head (compare-and-set)  ──▶  hint

Killed anywhere, the next start takes the next number: a number is used up as soon as WeightsPublished is stored, and no worker
has seen one that was not. A trainer whose claim is no longer the newest publishes nothing: what it wrote until then lies in a
folder of its own, that nothing names and ``collect`` removes. Where it published before that, and moves the head after its
successor joined, the successor moves it on. An earlier release's trainer compares nothing: of a number the journal then keeps
the first message, and the trainer that finds another folder in it than its own stops before it touches the head.

A reader that cannot have the newest version says so (``seamlessflow.weights.reader_leases``), and there is one in full
(``asking``).
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Mapping

import structlog
import torch
from torch import Tensor

from seamlessflow.bus.base import Bus
from seamlessflow.checkpoints.commit_claim import CommitClaim
from seamlessflow.codec import pack_record, unpack_record
from seamlessflow.contracts import WeightsHead, WeightsPublished, WeightsReading
from seamlessflow.contracts.routes import HINT_WEIGHTS, WEIGHTS_BUCKET
from seamlessflow.errors import MalformedMessage, Refused, SeamlessFlowError, SequenceMismatch, Unavailable
from seamlessflow.runtime import Journal
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import publish_folder, weights_path
from seamlessflow.weights.manifest import DELTA_FILE
from seamlessflow.weights.reader_leases import Readings, read_head, read_readings
from seamlessflow.weights.retention import Collection
from seamlessflow.weights.staleness import VersionSteps
from seamlessflow_trainer.blocking_work import in_thread, in_thread_with_retry

from .version_files import DeltaVersionBuilder, VersionBuilder, VersionContents

# When somebody's word that a version cannot be had makes the trainer publish in full. Pure; time is an argument, in seconds.
#
#     missed 23, newest full 20, a step is published        ─▶ 24 is full, unless 20 was a moment ago
#     missed 23, newest full 20, no step comes              ─▶ the same weights as 24, in full, at once
#     missed 20, which is full itself, no step comes        ─▶ the same weights again, each time after twice as long a rest
#
# Each reader has a rest of its own, until it has a version, whatever steps are taken meanwhile. So one that cannot reach the
# store costs some bytes, never every version in full; and one that everybody else waits for (the run's only worker, say, when
# a delta was damaged) is neither left to a full version that no step will ever bring, nor to the rest of another.


APART = 3
"""Versions from a full one to the next that is full because somebody asked, while steps are taken."""
FIRST_REST_SECONDS = 30.0
LONGEST_REST_SECONDS = 3600.0
"""Between two publications of the same weights for one reader: doubled each time. For others it is the first one."""


class FullVersionRequests:
    """newest_full: the newest version that is loaded by itself; -1: none yet."""

    def __init__(self) -> None:
        self._until = float("-inf")
        self._rests: dict[str, tuple[float, float]] = {}
        """By reader: of how many seconds its rest is, and until when."""

    def for_step(self, missed: Iterable[WeightsReading], *, version: int, newest_full: int) -> bool:
        """Whether ``version``, which a step is published as, should be full."""
        missed = self._outstanding(missed)
        self._until = float("-inf")
        return version - newest_full >= APART and any(each.weights_version > newest_full for each in missed)

    def for_now(self, missed: Iterable[WeightsReading], *, newest_full: int, now: float) -> bool:
        """Whether the weights that were published last should be published once more, in full. Yes is taken as done."""
        waiting = {each.reader for each in self._outstanding(missed) if each.weights_version >= newest_full}
        if now < self._until or not any(reader not in self._rests or now >= self._rests[reader][1] for reader in waiting):
            return False
        self._until = now + FIRST_REST_SECONDS
        for reader in waiting:
            seconds = min(2 * self._rests[reader][0], LONGEST_REST_SECONDS) if reader in self._rests else FIRST_REST_SECONDS
            self._rests[reader] = seconds, now + seconds
        return True

    def _outstanding(self, missed: Iterable[WeightsReading]) -> tuple[WeightsReading, ...]:
        """The same; who has taken its word back has a version, and no rest any more."""
        readings = tuple(missed)
        readers = {each.reader for each in readings}
        self._rests = {reader: rest for reader, rest in self._rests.items() if reader in readers}
        return readings


log = structlog.get_logger()

LOOK_SECONDS = 5.0
"""How long it may take to see what readers say. A server older than their bucket does not tell, and no step waits for it."""


class WeightsPublisher:
    """Publishes one run's weights. ``steps`` learns every version published. full_every: see ``weights.full_every``.
    last_step: from it on versions are full, so that what a finished run leaves is loaded by itself. maker: of versions that
    are something else than all weights in ``dtype``."""

    def __init__(
        self,
        bus: Bus,
        store: Store,
        journal: Journal,
        claim: CommitClaim,
        run: str,
        steps: VersionSteps,
        dtype: torch.dtype,
        *,
        full_every: int,
        last_step: int | None = None,
        version_builder: VersionBuilder | None = None,
    ) -> None:
        self._bus, self._store, self._journal, self._claim, self._run = bus, store, journal, claim, run
        self._steps = steps
        self._version_builder: VersionBuilder = version_builder or DeltaVersionBuilder(dtype, full_every)
        self._last_step = last_step
        self._revision: int | None = None
        self._collection, self._asked = Collection(store, run), FullVersionRequests()
        self.weights_version = -1
        """The newest published; -1: none."""
        self._newest_full = -1
        """Of those that this process published."""

    async def join(self) -> None:
        """Read the head and take over from whoever wrote it. ``steps`` must know the journal's versions."""
        entry = await (await self._bus.kv(WEIGHTS_BUCKET)).get(self._run)
        head = -1
        if entry is not None:
            self._revision = entry.revision
            found = await read_head(self._bus, self._run)
            head = -1 if found is None else found.weights_version
        newest = self._steps.newest
        self.weights_version = max(head, -1 if newest is None else newest)

    @property
    def newest_is_full(self) -> bool:
        """Whether the newest version is loaded by itself."""
        return self._newest_full == self.weights_version

    async def publish(self, weights: Mapping[str, Tensor], *, step: int, epoch: int, in_full: bool = False) -> WeightsPublished:
        """Make the weights the head, under a new number. in_full: whatever ``full_every`` says.

        Raises Superseded where our claim is not the newest, Refused when another trainer publishes for this run; BadInput,
        before a byte is written, see ``FiniteCheck``.
        """
        started, version = time.monotonic(), self.weights_version + 1
        path = weights_path(self._run, version, uuid.uuid4().hex[:12])
        is_last = self._last_step is not None and step >= self._last_step
        missed = () if in_full else await self._missed_versions()
        asked = in_full or self._asked.for_step(missed, version=version, newest_full=self._newest_full)
        files = await in_thread(
            self._version_builder.make,
            weights,
            version=version,
            step=step,
            newest=self.weights_version,
            is_last=is_last or asked,
        )
        num_bytes, is_full = await in_thread_with_retry("weights.publish", self._write, path, files)
        published = WeightsPublished(
            run=self._run,
            weights_version=version,
            step=step,
            path=path,
            num_bytes=num_bytes,
            wall_seconds=time.monotonic() - started,
        )
        await self._publish(published)
        self._steps.publish(version, step)
        await self._move_head(WeightsHead(weights_version=version, step=step, path=path, epoch=epoch))
        self.weights_version = version
        self._newest_full = version if is_full else self._newest_full
        self._version_builder.published(version, path)
        await self._bus.hint(HINT_WEIGHTS.format(run=self._run), b"")
        return published

    async def _publish(self, published: WeightsPublished) -> None:
        """Raises Superseded; Refused where the journal has another folder for this number, of an earlier release's trainer."""
        await self._claim.append(published)
        version = published.weights_version
        first = await self._journal.first(WeightsPublished, self._run, weights_version=version)
        if first is None or first.path != published.path:
            await self._claim.check()
            raise Refused(f"weights version {version} of run {self._run} was published by another trainer; this one stops")

    def _write(self, path: str, files: VersionContents) -> tuple[int, bool]:
        """Bytes written, and whether the version needs no other."""
        contents = files.contents()
        is_full = contents.keys() != {DELTA_FILE}
        # All versions up to the next full one build on a delta: small as it is, it is read once to see that it arrived.
        return publish_folder(self._store, path, contents, files.facts, read_back=(DELTA_FILE,)), is_full

    async def _move_head(self, head: WeightsHead) -> None:
        """Raises Superseded; Refused where an earlier release's trainer moved it, which claims nothing."""
        bucket, value = await self._bus.kv(WEIGHTS_BUCKET), pack_record(head)
        while True:
            try:
                if self._revision is None:
                    self._revision = await bucket.create(self._run, value)
                else:
                    self._revision = await bucket.update(self._run, value, self._revision)
                return
            except SequenceMismatch as wrong:
                entry = await bucket.get(self._run)
                if entry is not None and entry.value == value:
                    self._revision = entry.revision  # only our acknowledgement was lost
                    return
                if entry is None or _version_of(entry.value) >= head.weights_version:
                    await self._claim.check()
                    raise Refused(
                        f"the weights' head of run {self._run} was moved by another trainer; this one stops"
                    ) from wrong
                self._revision = entry.revision

    async def is_full_version_requested(self) -> bool:
        """Whether somebody cannot have the newest version, so that it should be published once more, in full, at once."""
        return self._asked.for_now(await self._missed_versions(), newest_full=self._newest_full, now=time.monotonic())

    async def _missed_versions(self) -> tuple[WeightsReading, ...]:
        """What readers could not have. A server that does not tell is no reason to wait: they say it again."""
        try:
            return (await self._readings()).missed
        except SeamlessFlowError as wrong:
            log.warning("weights.readers_unseen", run=self._run, reason=str(wrong))
            return ()

    async def _readings(self) -> Readings:
        """Raises Unavailable."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await read_readings(self._bus, self._run)
        except TimeoutError as wrong:
            raise Unavailable(f"what readers say (bucket READERS) did not come within {LOOK_SECONDS:g} s") from wrong

    async def collect(self) -> None:
        """Remove what neither the newest versions nor a reader need (``seamlessflow.weights.retention``).

        Raises Unavailable where a manifest or a lease cannot be read: nothing is removed then.
        """
        readings = await self._readings()  # after the head was moved, on which its promise rests
        removed = await in_thread(self._collection.collect, self.weights_version, readings.reads)
        if removed:
            log.info("weights.collected", run=self._run, num_removed=len(removed), num_leases=len(readings.reads))


def _version_of(head: bytes) -> int:
    """-1: no trainer wrote that."""
    try:
        return unpack_record(WeightsHead, head).weights_version
    except MalformedMessage:
        return -1
