"""Large payloads by reference: a message above 64 KiB rests in the object store under its digest.

The message then has no payload and a header that names the digest; readers fetch it and check it. Any fsspec URL works.
Credentials and endpoints come from where the filesystem looks for them: for ``s3://`` (extra ``s3``) AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL_S3 and the like; anything else through fsspec's own FSSPEC_<PROTOCOL>_<OPTION>.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Iterable
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
            target = self._aside(full)
            self.fs.pipe_file(target, content)
            self._in_place(target, full)
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot write {path} ({len(content)} bytes): {wrong}") from wrong

    def write_chunks(self, path: str, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
        """Put an object piece by piece, never whole in memory; returns its bytes and sha256. Raises Unavailable."""
        full = self.path(path)
        digest, num_bytes = hashlib.sha256(), 0
        try:
            target = self._aside(full)
            with self.fs.open(target, "wb") as file:
                for chunk in chunks:
                    digest.update(chunk)
                    file.write(chunk)
                    num_bytes += len(chunk)
            self._in_place(target, full)
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot write {path} (after {num_bytes} bytes): {wrong}") from wrong
        return num_bytes, digest.hexdigest()

    def _aside(self, full: str) -> str:
        """Where to write first: a reader must never see half of a file, so files get a name that no other writer has."""
        if not _has_folders(self.fs):
            return full
        self.fs.makedirs(full.rsplit("/", 1)[0], exist_ok=True)
        return f"{full}.{uuid.uuid4().hex}.part"

    def _in_place(self, target: str, full: str) -> None:
        if target != full:
            self.fs.mv(target, full)

    def folders(self, path: str) -> list[str]:
        """Names of what lies directly below a folder, sorted; empty when it does not exist. Raises Unavailable."""
        try:
            self.fs.invalidate_cache()
            return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in self.fs.ls(self.path(path), detail=False))
        except FileNotFoundError:
            return []
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot list {path}: {wrong}") from wrong

    def remove_folder(self, path: str) -> None:
        """Delete a folder and all below it; nothing when it does not exist. Raises Unavailable."""
        try:
            self.fs.rm(self.path(path), recursive=True)
        except FileNotFoundError:
            pass
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot remove {path}: {wrong}") from wrong

    def remove(self, path: str) -> None:
        """Delete one object; nothing when it does not exist. Raises Unavailable."""
        try:
            self.fs.rm_file(self.path(path))
        except FileNotFoundError:
            pass
        except Exception as wrong:
            raise Unavailable(f"store {self.url}: cannot remove {path}: {wrong}") from wrong

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


def _has_folders(fs: object) -> bool:
    """False for object stores, where a put is whole or nothing and making a "folder" may mean making a bucket."""
    protocol = getattr(fs, "protocol", ())
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    return not names & {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"}
