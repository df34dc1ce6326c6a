"""Who reads which version, and who could not have one: keys of the READERS bucket, gone by themselves when their writer dies.

    <run>.reads.<id>         a lease: renewed while somebody reads, deleted afterwards, else it runs out by the server's clock
    <run>.missed.<reader>    "I could not have version N": the trainer publishes in full, and does not wait for a step with it

State, read when it matters; no event that could be missed. A lease that was lost (a reader cut off for a minute) costs
at worst a read that fails and is tried again: nothing is loaded whose digests are wrong.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from seamlessflow.bus.base import Bus, KeyValue
from seamlessflow.codec import decode, pack_record, unpack_record
from seamlessflow.contracts import WeightsHead, WeightsPublished, WeightsReading
from seamlessflow.contracts.routes import READERS_BUCKET, WEIGHTS_BUCKET
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import MalformedMessage, SeamlessFlowError, Unavailable

from .retention import may_be_read

log = structlog.get_logger()

LEASE_SECONDS = 60
"""After this long without renewal a reader counts as gone."""
RENEW_SECONDS = 15.0
MISSED_SECONDS = 300
"""How long the word that a version could not be had stands; who still cannot have it tries and says it each minute."""
SAY_SECONDS = 5.0
"""How long leasing may take. A server that does not let us (permissions older than leases) keeps nobody from reading."""
REST_SECONDS = 300.0
"""How long no lease is tried after that."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What readers of a run say now."""

    reads: tuple[WeightsReading, ...]
    missed: tuple[WeightsReading, ...]


async def read_head(bus: Bus, run: str) -> WeightsHead | None:
    """The newest complete version of a run; None: nothing was published yet.

    A head that cannot be read is made up from the journal's newest WeightsPublished; the trainer's next version replaces it.
    """
    entry = await (await bus.kv(WEIGHTS_BUCKET)).get(run)
    if entry is None:
        return None
    try:
        return unpack_record(WeightsHead, entry.value)
    except MalformedMessage as wrong:
        log.warning("weights.head_unreadable", run=run, reason=f"{wrong}; the journal's newest version counts instead")
        return await head_of_journal(bus, run)


async def head_of_journal(bus: Bus, run: str) -> WeightsHead | None:
    """What the head would be by the journal alone: it is moved after each WeightsPublished. None: there is none."""
    record = await bus.last(journal_stream(run), subject_filter(WeightsPublished, run=run))
    newest = None if record is None else decode(record.subject, record.payload, record.headers)
    if not isinstance(newest, WeightsPublished):
        return None
    return WeightsHead(weights_version=newest.weights_version, step=newest.step, path=newest.path, epoch=0)


async def read_readings(bus: Bus, run: str) -> Readings:
    """Raises Unavailable where one cannot be read: it may be a lease, so nothing may be removed."""
    reads: list[WeightsReading] = []
    missed: list[WeightsReading] = []
    for entry in await (await bus.kv(READERS_BUCKET)).entries():
        if not entry.key.startswith(f"{run}."):
            continue
        try:
            reading = unpack_record(WeightsReading, entry.value)
        except MalformedMessage as wrong:
            raise Unavailable(
                f"key {entry.key} of bucket {READERS_BUCKET} cannot be read: {wrong}; nothing is removed"
            ) from wrong
        (missed if reading.missed else reads).append(reading)
    return Readings(tuple(reads), tuple(missed))


class Reader:
    """One who reads versions of a run. name: for people, and a subject token."""

    def __init__(self, bus: Bus, run: str, name: str) -> None:
        self._bus, self._run, self._name = bus, run, name
        self._has_missed = True
        """Whether its word may stand; at the start it may be that of an earlier one of this name."""
        self._rests_until = 0.0

    @asynccontextmanager
    async def lease(self, head: WeightsHead) -> AsyncIterator[WeightsHead]:
        """While the block runs nobody removes the version it is given: ``head``, or the newest one where that moved on too
        far. Where no lease can be had it is given all the same, and that is said. Raises Unavailable without a server."""
        while True:
            async with self.lease_one(head.weights_version, head.path):
                newest = await read_head(self._bus, self._run)
                if newest is None or may_be_read(head.weights_version, newest.weights_version):
                    yield head
                    return
            head = newest

    @asynccontextmanager
    async def lease_one(self, weights_version: int, path: str) -> AsyncIterator[bool]:
        """Of any version. False: there is no lease. One that is not among the newest may be being removed already."""
        reading = WeightsReading(weights_version=weights_version, path=path, reader=self._name)
        key, bucket = f"{self._run}.reads.{uuid.uuid4().hex}", None
        if time.monotonic() >= self._rests_until:
            bucket = await self._begin(key, reading)
        if bucket is None:
            yield False
            return
        renewing = asyncio.create_task(_renew(bucket, key, reading))
        try:
            yield True
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            await _forget(self._bus, key)

    async def _begin(self, key: str, reading: WeightsReading) -> KeyValue | None:
        try:
            async with asyncio.timeout(SAY_SECONDS):
                bucket = await self._bus.kv(READERS_BUCKET)
                await bucket.create(key, pack_record(reading), ttl_seconds=LEASE_SECONDS)
                return bucket
        except (SeamlessFlowError, TimeoutError) as wrong:
            self._rests_until = time.monotonic() + REST_SECONDS
            log.warning("weights.read_without_lease", run=self._run, reason=str(wrong) or f"no answer in {SAY_SECONDS:g} s")
            return None

    async def missed(self, weights_version: int, path: str, why: str) -> None:
        """Say that a version could not be had. What cannot be said is only logged."""
        reading = WeightsReading(weights_version=weights_version, path=path, reader=self._name, missed=why or "unknown")
        with suppress(TimeoutError):
            async with asyncio.timeout(SAY_SECONDS):
                try:
                    bucket = await self._bus.kv(READERS_BUCKET)
                    await bucket.put(self._missed_key, pack_record(reading), ttl_seconds=MISSED_SECONDS)
                    self._has_missed = True
                except SeamlessFlowError as wrong:
                    log.warning("weights.miss_not_said", run=self._run, weights_version=weights_version, reason=str(wrong))

    async def got(self) -> None:
        """A version was had after all."""
        if self._has_missed:
            self._has_missed = False
            await _forget(self._bus, self._missed_key)

    @property
    def _missed_key(self) -> str:
        return f"{self._run}.missed.{self._name}"


async def _renew(bucket: KeyValue, key: str, reading: WeightsReading) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        held = reading.model_copy(update={"held_seconds": time.monotonic() - began})
        try:
            async with asyncio.timeout(RENEW_SECONDS):
                await bucket.put(key, pack_record(held), ttl_seconds=LEASE_SECONDS)
        except (SeamlessFlowError, TimeoutError) as wrong:
            log.warning("weights.lease_not_renewed", weights_version=reading.weights_version, reason=str(wrong))


async def _forget(bus: Bus, key: str) -> None:
    """What is not forgotten in time runs out by itself."""
    with suppress(SeamlessFlowError, TimeoutError):
        async with asyncio.timeout(SAY_SECONDS):
            await (await bus.kv(READERS_BUCKET)).delete(key)
