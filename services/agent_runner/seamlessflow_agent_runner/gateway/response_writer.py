"""Responses to calls: however long an answer takes, the client's timers never run out.

For a short grace nothing is sent, so that an immediate refusal keeps its real status; the first text of a stream ends
it. After it status 200 and the headers go out, then text as it is sampled, and after each second without any a sign of
life: white space before the JSON, or a data event that adds nothing (comment lines do not reset every client's idle timer;
docs/adr and requirements D have the measurements).

An error after the 200: a stream carries it as an error event, which clients raise. A whole answer cannot; the
connection is aborted, the client's own retry comes, joins the call, and gets the error under its real status.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import structlog
from aiohttp import web

from seamlessflow.contracts import CallAnswered

from .answer_wait import AnswerProgress, Unsent, texts_of
from .api_errors import ApiError, episode_over
from .dialects.base import ApiDialect, Frame, ParsedRequest, Stream
from .sessions import GatewayCall

log = structlog.get_logger()

UNACKNOWLEDGED_SECONDS = 20.0
STALLED_SECONDS = 60.0
ROOM_BYTES = 32 << 10
"""Any client's system buffers as much though the client reads nothing."""
_LOOKS = 4
"""Checks within STALLED_SECONDS; they come more often than every UNACKNOWLEDGED_SECONDS."""


class ClientConnection:
    """The connection of a request that is being answered, as a context: breaks dead and stalled ones.

    dead, without FIN   the system breaks a connection on which nothing is acknowledged for UNACKNOWLEDGED_SECONDS; while a call
                        waits, something is sent each second, so that is noticed (where the system has TCP_USER_TIMEOUT)
    reads nothing       the connection is aborted after STALLED_SECONDS; it would hold an answer in memory without limit

    Linux counts a client that is alive but has a full buffer as one that acknowledges nothing. So once more was sent than the
    buffer surely holds, the system waits for STALLED_SECONDS, too.
    """

    def __init__(self, request: web.Request) -> None:
        self._request, self._loop = request, asyncio.get_running_loop()
        self._taken, self._taken_at, self._patience = 0, 0.0, 0.0

    def __enter__(self) -> None:
        self._expect_acknowledgements()
        self._taken_at = self._loop.time()
        self._next = self._loop.call_later(STALLED_SECONDS / _LOOKS, self._look)

    def __exit__(self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None) -> None:
        self._next.cancel()
        self._expect_acknowledgements()  # the last bytes are still on their way

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


GRACE_SECONDS = 1.0
BEAT_SECONDS = 1.0
STREAM_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # proxies that know it would else collect the events
}


async def send(request: web.Request, call: GatewayCall, asked: ParsedRequest, dialect: ApiDialect) -> web.StreamResponse:
    """Answer a request with a call's answer once there is one. Raises ApiError while nothing was sent."""
    assert call.answer is not None and call.progress is not None
    frame = Frame(call.id, int(time.time()), asked)
    with ClientConnection(request):
        return await ResponseWriter(request, call, call.answer, call.progress, frame, dialect).send()


@dataclass(frozen=True, slots=True)
class ResponseWriter:
    """Writes one call's answer to one of its clients.

    It keeps its own references: another response to the call may end, and clear them there, before this one.
    """

    request: web.Request
    call: GatewayCall
    answer: asyncio.Task[CallAnswered]
    progress: AnswerProgress
    frame: Frame
    dialect: ApiDialect

    async def send(self) -> web.StreamResponse:
        """Write the response, waiting for the answer. Raises ApiError while nothing was sent."""
        is_stream = self.frame.asked.stream
        if not (is_stream and self.progress.has_text):
            await _wait(GRACE_SECONDS, self.answer, *((self.progress.grown,) if is_stream else ()))
        if self.answer.done() and (refusal := self._refusal()) is not None:
            self.call.deliver()
            raise refusal
        if is_stream:
            return await self._send_stream()
        return await (self._send_at_once() if self.answer.done() else self._send_whole())

    async def _send_at_once(self) -> web.StreamResponse:
        """One write with a Content-Length. Raises ApiError."""
        refusal, body = self._written(self._whole)
        if refusal is not None:
            self.call.deliver()  # else a repetition would get the same failure
            raise refusal
        response = web.Response(body=body, content_type="application/json")
        with suppress(ConnectionError):
            await response.prepare(self.request)
            await response.write_eof()
            self._note_delivery()
        return response

    async def _send_whole(self) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        with suppress(ConnectionError):
            await response.prepare(self.request)
            while not self.answer.done():
                await _wait(BEAT_SECONDS, self.answer)
                if not self.answer.done():
                    await response.write(b" ")
            refusal, body = self._refusal(), b""
            if refusal is None:
                refusal, body = self._written(self._whole)
            if refusal is None:
                await response.write(body)
                await response.write_eof()
                self._note_delivery()
            elif self.request.transport is not None:
                self.request.transport.abort()
        return response

    async def _send_stream(self) -> web.StreamResponse:
        response = web.StreamResponse(headers=STREAM_HEADERS)
        stream, unsent, progress = self.dialect.stream(self.frame), Unsent(), self.progress
        with suppress(ConnectionError):
            await response.prepare(self.request)
            await response.write(stream.opening())
            while not self.answer.done():
                grown = progress.grown
                texts = unsent.take(progress.reasoning, progress.content)
                if any(texts):
                    await response.write(stream.more(*texts))
                await _wait(BEAT_SECONDS, self.answer, grown)
                if not self.answer.done() and not grown.done():
                    await response.write(stream.idle())
            refusal, body = self._refusal(), b""
            if refusal is None:
                refusal, body = self._written(lambda answer: _rest(stream, unsent, answer))
            await response.write(body if refusal is None else stream.failing(refusal))
            await response.write_eof()
            self._note_delivery()
        return response

    def _whole(self, answer: CallAnswered) -> bytes:
        return json.dumps(self.dialect.whole(self.frame, answer)).encode()

    def _written(self, write: Callable[[CallAnswered], bytes]) -> tuple[ApiError | None, bytes]:
        """The bytes of an answer, or the error that it cannot be written."""
        try:
            return None, write(self.answer.result())
        except Exception:
            log.exception("answer.unwritable", call=self.call.id)
            return _our_failure(), b""

    def _refusal(self) -> ApiError | None:
        if self.answer.cancelled():
            return episode_over()
        if (failure := self.answer.exception()) is not None:
            log.error("call.failed", call=self.call.id, reason=repr(failure))
            return _our_failure()
        error = self.answer.result().error
        return None if error is None else ApiError.of(error)

    def _note_delivery(self) -> None:
        if self.request.transport is not None and not self.request.transport.is_closing():
            self.call.deliver()


def _rest(stream: Stream, unsent: Unsent, answer: CallAnswered) -> bytes:
    if not unsent.fits(answer):
        log.error("stream.differs", call=answer.call, episode=answer.episode, reason="its text differs from its deltas")
    texts = unsent.take(*texts_of(answer))
    return (stream.more(*texts) if any(texts) else b"") + stream.ending(answer)


async def _wait(seconds: float, *awaited: asyncio.Future[Any]) -> None:
    """Wait for one of them, at most this long; the call goes on if the client leaves."""
    await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


def _our_failure() -> ApiError:
    return ApiError(500, "the gateway failed; its log says why", code="internal_error")
