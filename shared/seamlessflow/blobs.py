"""Large payloads by reference: a message above 64 KiB rests in the object store under its digest.

The message then has no payload and a header that names the digest; readers fetch it and check it. Any fsspec URL works.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

import fsspec

from .bus.base import Message
from .errors import MalformedMessage, Unavailable

INLINE_BYTES = 64 * 1024
"""Largest payload that travels inside its message; JetStream's throughput falls beyond (docs/architecture.md)."""
BLOB_HEADER = "Sf-Blob"


class Store:
    """A run's folder in the object store. Calls block the calling thread; the ``a``-methods do not block the loop."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.fs, self.root = fsspec.core.url_to_fs(self.url)

    def path(self, *parts: str) -> str:
        """Full path inside the filesystem."""
        return "/".join((self.root.rstrip("/"), *parts))

    def write(self, path: str, content: bytes) -> None:
        """Put a whole object; raises Unavailable when the store refuses."""
        full = self.path(path)
        try:
            self.fs.makedirs(full.rsplit("/", 1)[0], exist_ok=True)
            if _is_local(self.fs):
                # A reader must never see half of it: local files are written aside and renamed.
                self.fs.pipe_file(full + ".part", content)
                self.fs.mv(full + ".part", full)
            else:
                self.fs.pipe_file(full, content)
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot write {path} ({len(content)} bytes): {wrong}") from wrong

    def read(self, path: str) -> bytes:
        """A whole object; raises FileNotFoundError, or Unavailable for any other trouble."""
        try:
            return bytes(self.fs.cat_file(self.path(path)))
        except FileNotFoundError:
            raise
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot read {path}: {wrong}") from wrong

    def exists(self, path: str) -> bool:
        return bool(self.fs.exists(self.path(path)))

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


def _is_local(fs: object) -> bool:
    return "file" in getattr(fs, "protocol", ())
