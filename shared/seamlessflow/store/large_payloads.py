"""Large payloads by reference: a message above 64 KiB rests in the object store under its digest.

The message then has no payload and a header that names the digest; readers fetch it and check it. Any fsspec URL works
(``object_store``).
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

from seamlessflow.bus.base import Message
from seamlessflow.errors import MalformedMessage

from .object_store import ObjectStore

INLINE_BYTES = 64 * 1024
"""Largest payload that travels inside its message; JetStream's throughput falls beyond (docs/architecture.md)."""
BLOB_HEADER = "Sf-Blob"


class Store(ObjectStore):
    """A run's folder in the object store, and payloads in it. The asynchronous methods do not block the loop."""

    async def detach(self, message: Message) -> Message:
        """The message as it is when small; else its payload put into the store and a reference instead."""
        if len(message.payload) <= INLINE_BYTES:
            return message
        digest = hashlib.sha256(message.payload).hexdigest()
        run = message.subject.split(".")[1]
        await asyncio.to_thread(self.write, f"{run}/blobs/{digest}", message.payload)
        return replace(message, payload=b"", headers={**message.headers, BLOB_HEADER: f"{run}/blobs/{digest}"})

    async def attach(self, payload: bytes, headers: dict[str, str]) -> bytes:
        """The payload a message stands for. Raises MalformedMessage when the stored bytes are not what was meant."""
        reference = headers.get(BLOB_HEADER)
        if reference is None:
            return payload
        try:
            content = await asyncio.to_thread(self.read, reference)
        except FileNotFoundError as wrong:
            raise MalformedMessage(f"payload {reference} is not in the store {self.url}") from wrong
        if hashlib.sha256(content).hexdigest() != reference.rsplit("/", 1)[-1]:
            raise MalformedMessage(f"payload {reference} in the store does not have the digest of its name")
        return content
