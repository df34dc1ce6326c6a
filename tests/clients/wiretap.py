"""What goes over the wire between client and gateway: a relay on loopback that changes nothing and remembers all."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_REQUEST = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE) (\S+) HTTP/1\.1\r\n")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@dataclass
class Exchange:
    """One connection's bytes, each way."""

    asked: bytearray = field(default_factory=bytearray)
    answered: bytearray = field(default_factory=bytearray)


class Wiretap:
    """Listens at ``url`` and hands everything on to the target, which may become known later than the url is needed."""

    def __init__(self) -> None:
        self.url = ""
        self.exchanges: list[Exchange] = []
        self._target: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        self._pumps: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def lead_to(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._target.set_result((parts.hostname, parts.port))

    async def close(self) -> None:
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    @property
    def requests(self) -> list[str]:
        """Method and path of each request, oldest connection first."""
        found = [match for exchange in self.exchanges for match in _REQUEST.finditer(bytes(exchange.asked))]
        return [f"{match[1].decode()} {match[2].decode()}" for match in found]

    @property
    def statuses(self) -> list[int]:
        return [int(match[1]) for exchange in self.exchanges for match in _STATUS.finditer(bytes(exchange.answered))]

    def transcript(self) -> str:
        """For people."""
        parts = []
        for number, exchange in enumerate(self.exchanges):
            parts += [f"--- connection {number}: asked", exchange.asked.decode(errors="replace")]
            parts += [f"--- connection {number}: answered", exchange.answered.decode(errors="replace")]
        return "\n".join(parts)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = await self._target
        theirs, ours = await asyncio.open_connection(host, port)
        exchange = Exchange()
        self.exchanges.append(exchange)
        for source, sink, memory in ((reader, ours, exchange.asked), (theirs, writer, exchange.answered)):
            pump = asyncio.create_task(_pump(source, sink, memory))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, memory: bytearray) -> None:
    with suppress(ConnectionError):
        while chunk := await source.read(1 << 16):
            memory += chunk
            sink.write(chunk)
            await sink.drain()
    sink.close()
