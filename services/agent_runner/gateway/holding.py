"""Holding a call: however long its answer takes, the client's timers never run out.

For a short grace nothing is sent, so that what is refused at once keeps its real status; the first text of a stream ends
it. After it status 200 and the headers go out, then text as it is sampled, and after each second without any a sign of
life: white space before the JSON, or a data event that adds nothing (comment lines do not reset every client's idle timer;
docs/adr and requirements D have the measurements).

An error after the 200: a stream carries it as an error event, which clients raise. A whole answer cannot; the
connection is aborted, the client's own retry comes, joins the call, and gets the error under its real status.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from aiohttp import web

from seamlessflow.contracts import CallAnswered

from .calls import Call
from .dialect import Asked, Dialect, Frame, Stream
from .errors import ApiError, episode_over
from .progress import Unsent, texts_of

log = structlog.get_logger()

GRACE_SECONDS = 1.0
BEAT_SECONDS = 1.0


async def send(request: web.Request, call: Call, asked: Asked, dialect: Dialect) -> web.StreamResponse:
    """Answer a request with a call's answer when it is there. Raises ApiError while nothing was sent."""
    call.transport = request.transport
    frame = Frame(call.id, int(time.time()), asked)
    await _wait(GRACE_SECONDS, call.answer, *((call.progress.grown,) if asked.stream else ()))
    if call.answer.done() and (refusal := _refusal_of(call)) is not None:
        call.was_delivered = True
        raise refusal
    if asked.stream:
        return await _send_stream(request, call, frame, dialect)
    return await (_send_at_once if call.answer.done() else _send_whole)(request, call, frame, dialect)


async def _send_at_once(request: web.Request, call: Call, frame: Frame, dialect: Dialect) -> web.StreamResponse:
    """One write with a Content-Length. Raises ApiError."""
    refusal, body = _written(call, lambda answer: json.dumps(dialect.whole(frame, answer)).encode())
    if refusal is not None:
        raise refusal
    response = web.Response(body=body, content_type="application/json")
    with suppress(ConnectionError):
        await response.prepare(request)
        await response.write_eof()
        call.was_delivered = _is_open(request)
    return response


async def _send_whole(request: web.Request, call: Call, frame: Frame, dialect: Dialect) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    with suppress(ConnectionError):
        await response.prepare(request)
        while not call.answer.done():
            await _wait(BEAT_SECONDS, call.answer)
            if not call.answer.done():
                await response.write(b" ")
        refusal, body = _refusal_of(call), b""
        if refusal is None:
            refusal, body = _written(call, lambda answer: json.dumps(dialect.whole(frame, answer)).encode())
        if refusal is None:
            await response.write(body)
            await response.write_eof()
            call.was_delivered = _is_open(request)
        elif request.transport is not None:
            request.transport.abort()
    return response


async def _send_stream(request: web.Request, call: Call, frame: Frame, dialect: Dialect) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    stream, unsent, progress = dialect.stream(frame), Unsent(), call.progress
    with suppress(ConnectionError):
        await response.prepare(request)
        await response.write(stream.opening())
        while not call.answer.done():
            grown = progress.grown
            texts = unsent.take(progress.reasoning, progress.content)
            if any(texts):
                await response.write(stream.more(*texts))
            await _wait(BEAT_SECONDS, call.answer, grown)
            if not call.answer.done() and not grown.done():
                await response.write(stream.idle())
        refusal, body = _refusal_of(call), b""
        if refusal is None:
            refusal, body = _written(call, lambda answer: _rest(stream, unsent, answer))
        await response.write(body if refusal is None else stream.failing(refusal))
        await response.write_eof()
        call.was_delivered = _is_open(request)
    return response


def _rest(stream: Stream, unsent: Unsent, answer: CallAnswered) -> bytes:
    if not unsent.fits(answer):
        log.error("stream.differs", call=answer.call, episode=answer.episode, reason="its text is not what its deltas said")
    texts = unsent.take(*texts_of(answer))
    return (stream.more(*texts) if any(texts) else b"") + stream.ending(answer)


def _written(call: Call, write: Callable[[CallAnswered], bytes]) -> tuple[ApiError | None, bytes]:
    """An answer as it goes out, or why it cannot be written down."""
    try:
        return None, write(call.answer.result())
    except Exception:
        log.exception("answer.unwritable", call=call.id)
        return _our_failure(), b""


async def _wait(seconds: float, *awaited: asyncio.Future[Any]) -> None:
    """For one of them, at most this long. The client may go; the call does not."""
    await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


def _refusal_of(call: Call) -> ApiError | None:
    if call.answer.cancelled():
        return episode_over()
    if (failure := call.answer.exception()) is not None:
        log.error("call.failed", call=call.id, reason=repr(failure))
        return _our_failure()
    error = call.answer.result().error
    return None if error is None else ApiError.of(error)


def _our_failure() -> ApiError:
    return ApiError(500, "the gateway failed; its log says why", code="internal_error")


def _is_open(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()
