"""Clients of a gateway that are no more than a connection: they may stay, leave, retry or not read, as a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"


def body(words: str = "hello", **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": words}], **more}).encode()


@dataclass
class Client:
    """One request on a connection of its own."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    read: bytes = b""

    async def until(self, words: bytes, seconds: float = 5.0) -> bytes:
        """All that came up to and with these words."""
        async with asyncio.timeout(seconds):
            while words not in self.read:
                more = await self.reader.read(1 << 16)
                assert more, self.read
                self.read += more
        return self.read

    def leave(self) -> None:
        self.writer.transport.abort()


async def ask(gateway: Any, raw: bytes, *, path: str = CHAT, retry: int | None = None) -> Client:
    where = urlsplit(gateway.gateway.base_url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    marked = "" if retry is None else f"x-stainless-retry-count: {retry}\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nx-api-key: {gateway.session.key}\r\n{marked}Content-Length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    await writer.drain()
    return Client(reader, writer)


async def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)
