"""Batched direct get: many stored messages for one request, in order, with gaps noticed.

Every request has a reply token of its own, so an answer that comes after its request was given up cannot be taken for
another's. Inside a batch each message names its predecessor (``Nats-Last-Sequence``); a break of that chain or silence
ends the batch early, and the caller goes on from the last good record.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from types import TracebackType

from seamlessflow.bus.base import Record
from seamlessflow.bus.direct import ANSWER_SECONDS, record_from
from seamlessflow.bus.wire import NO_RESPONDERS, Incoming, Wire

BATCH_MESSAGES = 512
BATCH_BYTES = 4 << 20


@dataclass(slots=True)
class Batch:
    """``complete``: nothing matched beyond the last record when it was answered. ``unserved``: no such stream now."""

    records: list[Record] = field(default_factory=list)
    complete: bool = False
    unserved: bool = False


class Batches:
    """Asks for one batch at a time; an async context manager around its inbox."""

    def __init__(self, wire: Wire, stream: str) -> None:
        self._wire = wire
        self._subject = f"$JS.API.DIRECT.GET.{stream}"
        self._inbox = wire.inbox()
        self._request = 0
        self._batch = Batch()
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Batches:
        self._stop = await self._wire.listen(f"{self._inbox}.*", self._on_answer)
        self._stop_hearing_of_loss = self._wire.when_lost(lambda: self._ended.set())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_hearing_of_loss()
        await self._stop()

    async def fetch(self, pattern: str, start_seq: int) -> Batch:
        """Messages under ``pattern`` from ``start_seq`` on, at most one batch; possibly fewer than there are."""
        await self._wire.until_connected()
        self._request += 1
        self._batch, self._ended = Batch(), asyncio.Event()
        query = {"batch": BATCH_MESSAGES, "max_bytes": BATCH_BYTES, "seq": start_seq, "next_by_subj": pattern}
        try:
            await self._wire.send(self._subject, json.dumps(query).encode(), reply=f"{self._inbox}.{self._request}")
            # Not wait_for: before Python 3.12 it swallows a cancellation that meets the event.
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._ended.wait()
        except TimeoutError:
            pass  # what has come so far is good; the caller asks again
        self._request += 1
        return self._batch

    async def _on_answer(self, answer: Incoming) -> None:
        if answer.subject.rpartition(".")[2] != str(self._request) or self._ended.is_set():
            return
        if answer.status is not None:
            self._batch.complete = answer.status == 404 or answer.headers.get("Nats-Num-Pending") == "0"
            self._batch.unserved = answer.status == NO_RESPONDERS
            self._ended.set()
        elif int(answer.headers["Nats-Last-Sequence"]) != self._last_seq:
            self._ended.set()
        else:
            self._batch.records.append(record_from(answer))

    @property
    def _last_seq(self) -> int:
        return self._batch.records[-1].seq if self._batch.records else 0
