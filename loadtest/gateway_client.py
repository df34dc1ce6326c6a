"""A bare HTTP client: one kept-alive connection, one call at a time, whole or chunked answers.

An asyncio protocol and nothing else: one process of it does several thousand calls a second, so that it is never what a
benchmark measures.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import cast
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 60.0
"""A call that takes longer is an error of the benchmark."""


class Client(asyncio.Protocol):
    """One connection, one call at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._body_at = self._length = -1
        self._done: asyncio.Future[bytes] | None = None
        self._mark: re.Pattern[bytes] | None = None
        self.marked_at = self.ended_at = 0.0
        """When (time.monotonic) what a call is to mark came for the first time, and its last byte."""

    @classmethod
    async def open(cls, url: str) -> Client:
        split = urlsplit(url)
        _, client = await asyncio.get_running_loop().create_connection(cls, split.hostname or "", split.port or 80)
        return client

    async def call(self, request: bytes, mark: re.Pattern[bytes] | None = None) -> bytes:
        """The body of a 200. Raises RuntimeError with what else came, TimeoutError. ``mark``: see ``marked_at``."""
        assert self._transport is not None
        self._received.clear()
        self._body_at, self._mark = -1, mark
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is no subclass

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._mark is not None and self._mark.search(self._received):
            self.marked_at, self._mark = time.monotonic(), None
        if self._body_at < 0:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._body_at = end + 4
            self._length = _content_length(bytes(self._received[:end]).lower())
        if self._length >= 0:
            is_whole = len(self._received) >= self._body_at + self._length
        else:
            is_whole = self._received.endswith(b"\r\n0\r\n\r\n")
        if is_whole:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(RuntimeError(f"the connection was lost in a call: {exc}"))

    def _finish(self) -> None:
        assert self._done is not None
        if self._done.done():
            return
        self.ended_at = time.monotonic()
        received = bytes(self._received)
        body = received[self._body_at :] if self._length >= 0 else _joined(received, self._body_at)
        if received.startswith(b"HTTP/1.1 200"):
            self._done.set_result(body)
        else:
            self._done.set_exception(RuntimeError(f"a call was answered with {received[:300]!r}"))


def _content_length(head: bytes) -> int:
    """-1: chunked."""
    _, found, rest = head.partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else -1


def _joined(received: bytes, position: int) -> bytes:
    """The chunks of a chunked body."""
    parts: list[bytes] = []
    while True:
        end = received.index(b"\r\n", position)
        length = int(received[position:end].split(b";")[0], 16)
        if not length:
            return b"".join(parts)
        parts.append(received[end + 2 : end + 2 + length])
        position = end + 4 + length
