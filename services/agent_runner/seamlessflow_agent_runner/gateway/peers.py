"""Clients that are gone without a word, and clients that take nothing of what they are sent.

gone, no FIN      the system breaks a connection on which nothing is acknowledged for UNACKNOWLEDGED_SECONDS; while a call is
                  held something is sent each second, so that is noticed (where the system has TCP_USER_TIMEOUT)
takes nothing     its connection is aborted after STALLED_SECONDS, or it would hold an answer in memory for as long as it likes

Linux counts a client that is alive but has no room in its buffer as one that acknowledges nothing. So once more was sent than
surely has room there, the system waits for STALLED_SECONDS, too.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from types import TracebackType

import structlog
from aiohttp import web

log = structlog.get_logger()

UNACKNOWLEDGED_SECONDS = 20.0
STALLED_SECONDS = 60.0
ROOM_BYTES = 32 << 10
"""Any client's system takes as much though the client reads nothing."""
_LOOKS = 4
"""Within STALLED_SECONDS; more often than UNACKNOWLEDGED_SECONDS."""


class Watched:
    """A request that is being answered, as a context."""

    def __init__(self, request: web.Request) -> None:
        self._request, self._loop = request, asyncio.get_running_loop()
        self._taken, self._taken_at, self._patience = 0, 0.0, 0.0

    def __enter__(self) -> None:
        self._expect_acknowledgements()
        self._taken_at = self._loop.time()
        self._next = self._loop.call_later(STALLED_SECONDS / _LOOKS, self._look)

    def __exit__(self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None) -> None:
        self._next.cancel()
        self._expect_acknowledgements()  # the last of it is on its way yet

    def _look(self) -> None:
        transport, now = self._request.transport, self._loop.time()
        if transport is None or transport.is_closing():
            return
        waiting = transport.get_write_buffer_size()
        taken = self._request.writer.output_size - waiting
        if waiting == 0 or taken != self._taken:
            self._taken, self._taken_at = taken, now
        elif now - self._taken_at >= STALLED_SECONDS:
            log.info("client.stalled", waiting_bytes=waiting, waited_seconds=STALLED_SECONDS)
            transport.abort()
            return
        self._expect_acknowledgements()
        self._next = self._loop.call_later(STALLED_SECONDS / _LOOKS, self._look)

    def _expect_acknowledgements(self) -> None:
        """Let the system break a connection whose other end is silent, as far as it can."""
        transport, option = self._request.transport, getattr(socket, "TCP_USER_TIMEOUT", None)
        connection = None if transport is None else transport.get_extra_info("socket")
        if connection is None or option is None:
            return
        seconds = UNACKNOWLEDGED_SECONDS if self._request.writer.output_size < ROOM_BYTES else STALLED_SECONDS
        if seconds != self._patience:
            with suppress(OSError):  # closed just now
                connection.setsockopt(socket.IPPROTO_TCP, option, int(seconds * 1000))
            self._patience = seconds
