"""Weights into the store, and the head that makes workers load them.

    files, manifest last  ──▶  WeightsPublished (once per number)  ──▶  head (compare-and-set)  ──▶  hint

Killed anywhere, the next start takes the next number: a number is used up as soon as WeightsPublished is said, and no
worker has seen one that was not. Two trainers cannot both publish: of a number the journal keeps the first message, and who
finds another folder in it than its own stops before it touches the head; so does who finds the head's revision changed since
it joined. What it wrote until then lies in a folder of its own, that nothing names and ``collect`` removes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

import structlog
import torch
from torch import Tensor

from seamlessflow.ages import VersionSteps
from seamlessflow.blobs import Store
from seamlessflow.bus.base import Bus
from seamlessflow.codec import pack_record, unpack_record
from seamlessflow.contracts import WeightsHead, WeightsPublished
from seamlessflow.contracts.routes import HINT_WEIGHTS, WEIGHTS_BUCKET
from seamlessflow.errors import Refused, SequenceMismatch
from seamlessflow.runtime import Speaker
from seamlessflow.weights import folders_of_versions, publish_folder, remove_folder, weights_path
from seamlessflow.weights.manifests import DELTA_FILE, read_manifest

from .threads import in_thread, patiently
from .versioning import VersionFiles, VersionMaker

log = structlog.get_logger()

KEEP_VERSIONS = 4
"""Versions that stay in the store, with all that they build on. A worker that finds a version gone reads the head again and
takes a newer one."""


async def read_head(bus: Bus, run: str) -> WeightsHead | None:
    """The newest complete version of a run; None: nothing was published yet."""
    entry = await (await bus.kv(WEIGHTS_BUCKET)).get(run)
    return None if entry is None else unpack_record(WeightsHead, entry.value)


class WeightsPublisher:
    """Publishes one run's weights. ``steps`` learns every version published. full_every: see ``weights.full_every``.
    last_step: from it on versions are full, so that what a finished run leaves is loaded by itself."""

    def __init__(
        self,
        bus: Bus,
        store: Store,
        speaker: Speaker,
        run: str,
        steps: VersionSteps,
        dtype: torch.dtype,
        *,
        full_every: int,
        last_step: int | None = None,
    ) -> None:
        self._bus, self._store, self._speaker, self._run = bus, store, speaker, run
        self._steps, self._maker = steps, VersionMaker(dtype, full_every)
        self._last_step = last_step
        self._revision: int | None = None
        self._full: dict[str, bool] = {}
        """Of the complete folders seen, by path, whether they are full: a manifest does not change."""
        self.weights_version = -1
        """The newest published; -1: none."""

    async def join(self) -> None:
        """Read the head and take over from whoever wrote it. ``steps`` must know the journal's versions."""
        entry = await (await self._bus.kv(WEIGHTS_BUCKET)).get(self._run)
        head = -1
        if entry is not None:
            self._revision = entry.revision
            head = unpack_record(WeightsHead, entry.value).weights_version
        newest = self._steps.newest
        self.weights_version = max(head, -1 if newest is None else newest)

    async def publish(self, weights: Mapping[str, Tensor], *, step: int, epoch: int) -> WeightsPublished:
        """Make the weights the head, under a new number.

        Raises Refused when another trainer publishes for this run; BadInput, before a byte is written, see ``NumbersOnly``.
        """
        started, version = time.monotonic(), self.weights_version + 1
        path = weights_path(self._run, version, uuid.uuid4().hex[:12])
        is_last = self._last_step is not None and step >= self._last_step
        files = await in_thread(
            self._maker.make, weights, version=version, step=step, newest=self.weights_version, is_last=is_last
        )
        num_bytes = await patiently("weights.publish", self._write, path, files)
        published = WeightsPublished(
            run=self._run,
            weights_version=version,
            step=step,
            path=path,
            num_bytes=num_bytes,
            wall_seconds=time.monotonic() - started,
        )
        await self._say(published)
        self._steps.publish(version, step)
        await self._move_head(WeightsHead(weights_version=version, step=step, path=path, epoch=epoch))
        self.weights_version = version
        self._maker.published(version, path)
        await self._bus.hint(HINT_WEIGHTS.format(run=self._run), b"")
        return published

    async def _say(self, published: WeightsPublished) -> None:
        """Raises Refused where the journal has another trainer's folder for this number.

        The message's id is the number's, whoever says it: a rival's is answered as if it were ours, sent twice.
        """
        stored = await self._speaker.say(published)
        if stored is not None and not stored.duplicate:
            return
        version = published.weights_version
        first = await self._speaker.first(WeightsPublished, self._run, weights_version=version)
        if first is None or first.path != published.path:
            raise Refused(f"weights version {version} of run {self._run} was published by another trainer; this one stops")

    def _write(self, path: str, files: VersionFiles) -> int:
        # All versions up to the next full one build on a delta: small as it is, it is read once to see that it arrived.
        return publish_folder(self._store, path, files.contents(), files.facts, read_back=(DELTA_FILE,))

    async def _move_head(self, head: WeightsHead) -> None:
        bucket, value = await self._bus.kv(WEIGHTS_BUCKET), pack_record(head)
        try:
            if self._revision is None:
                self._revision = await bucket.create(self._run, value)
            else:
                self._revision = await bucket.update(self._run, value, self._revision)
        except SequenceMismatch as wrong:
            entry = await bucket.get(self._run)
            if entry is None or entry.value != value:
                raise Refused(f"the weights' head of run {self._run} was moved by another trainer; this one stops") from wrong
            self._revision = entry.revision  # only our acknowledgement was lost

    def collect(self) -> None:
        """Remove all but the newest versions and what their deltas build on. Blocks.

        Raises Unavailable where a manifest cannot be read: nothing is removed then.
        """
        there = folders_of_versions(self._store, weights_path(self._run, 0).rsplit("/", 1)[0])
        paths = {path for each in there.values() for path in each}
        self._full = {path: is_full for path, is_full in self._full.items() if path in paths}
        oldest = self._full_before(self.weights_version - KEEP_VERSIONS + 1, there)
        for version in [each for each in there if oldest is not None and each < oldest]:
            for path in there[version]:
                remove_folder(self._store, path)

    def _full_before(self, version: int, there: Mapping[int, list[str]]) -> int | None:
        """The nearest full version up to this one; None: there is none, or none yet. Raises Unavailable."""
        for candidate in sorted((each for each in there if each <= version), reverse=True):
            found = [self._is_full(path, candidate) for path in there[candidate]]
            complete = [is_full for is_full in found if is_full is not None]
            if complete and all(complete):  # of several attempts any may be the one that was published
                return candidate
        return None

    def _is_full(self, path: str, version: int) -> bool | None:
        """None: there is no manifest, its writer died. Raises Unavailable."""
        if path not in self._full:
            try:
                self._full[path] = read_manifest(self._store, path, version).full is not None
            except FileNotFoundError:
                return None
        return self._full[path]
