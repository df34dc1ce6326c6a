"""Buckets of small current state on a real server, in the layout of NATS KV (``nats kv get`` can read them).

A value is the last message of ``$KV.<bucket>.<key>``; its revision is that message's sequence, so compare-and-set is an
append with the fence and the repeats of publishing. History is 1. There is no ``limit_marker_ttl``: with it, a key
that expired would leave a marker behind, and create would fail until the marker is gone too.
"""

from __future__ import annotations

import uuid

from typing_extensions import override

from seamlessflow.errors import ConfigError, SequenceMismatch

from .admin import Admin
from .base import Entry, KeyValue, Message, Record, checked_key, checked_ttl
from .publish import Publisher
from .reader import DirectGet, Reader

DELETE_MARKER_SECONDS = 60
"""A deleted key's marker goes away by itself, so that keys that come and go cost nothing."""


class JetStreamKeyValue(KeyValue):
    """A bucket read by direct get and written by publish, over its stream ``KV_{bucket}``."""

    def __init__(self, bucket: str, publisher: Publisher, direct: DirectGet, reader: Reader) -> None:
        self._bucket = bucket
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."
        self._publisher = publisher
        self._direct = direct
        self._reader = reader

    async def make_if_missing(self, admin: Admin) -> None:
        """Whether it is there is asked by direct get, which every service may do; making it needs more rights."""
        if await self._direct.serves(self._stream):
            return
        try:
            await admin.create_stream(self._stream, self._config())
        except ConfigError:
            if not await self._direct.serves(self._stream):  # else another tool made it, with options of its own
                raise

    @override
    async def get(self, key: str) -> Entry | None:
        record = await self._direct.get(self._stream, {"last_by_subj": self._subject(key)})
        return self._entry(record) if record is not None and not _is_marker(record) else None

    @override
    async def put(self, key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        return await self._store(key, value, ttl_seconds, None)

    @override
    async def create(self, key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        try:
            return await self._store(key, value, ttl_seconds, 0)
        except SequenceMismatch:
            record = await self._direct.get(self._stream, {"last_by_subj": self._subject(key)})
            if record is not None and not _is_marker(record):
                raise
            return await self._store(key, value, ttl_seconds, record.seq if record is not None else 0)

    @override
    async def update(self, key: str, value: bytes, revision: int, *, ttl_seconds: int | None = None) -> int:
        return await self._store(key, value, ttl_seconds, revision)

    @override
    async def delete(self, key: str) -> None:
        if await self.get(key) is not None:
            await self._store(key, b"", DELETE_MARKER_SECONDS, None, {"KV-Operation": "DEL"})

    @override
    async def entries(self) -> list[Entry]:
        # Not up to a tail read before: a key rewritten in between would be on neither side of it.
        newest = {record.subject: record async for record in self._reader.read_all(self._stream, f"{self._prefix}>")}
        return [self._entry(record) for record in newest.values() if not _is_marker(record)]

    async def _store(
        self, key: str, value: bytes, ttl_seconds: int | None, revision: int | None, marks: dict[str, str] | None = None
    ) -> int:
        headers = dict(marks or {})
        if checked_ttl(key, ttl_seconds) is not None:
            headers["Nats-TTL"] = f"{ttl_seconds}s"
        message = Message(self._subject(key), value, uuid.uuid4().hex, headers, expected_last_seq=revision)
        return (await self._publisher.publish(message)).seq

    def _subject(self, key: str) -> str:
        return self._prefix + checked_key(self._bucket, key)

    def _entry(self, record: Record) -> Entry:
        return Entry(record.subject.removeprefix(self._prefix), record.payload, record.seq)

    def _config(self) -> dict[str, object]:
        return {
            "name": self._stream,
            "subjects": [f"{self._prefix}>"],
            "retention": "limits",
            "discard": "new",
            "storage": "file",
            "max_msgs_per_subject": 1,
            "duplicate_window": 120_000_000_000,
            "allow_direct": True,
            "allow_msg_ttl": True,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "num_replicas": 1,
        }


def _is_marker(record: Record) -> bool:
    return "KV-Operation" in record.headers or "Nats-Marker-Reason" in record.headers
