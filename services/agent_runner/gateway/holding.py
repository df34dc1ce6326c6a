"""Holding a call: however long its answer takes, the client's timers never run out.

For a short grace nothing is sent, so that what is refused at once keeps its real status. After it status 200 and the
headers go out, then a sign of life each second: white space before the JSON, or a data event that adds nothing
(comment lines do not reset every client's idle timer; docs/adr and requirements D have the measurements).

An error after the 200: a stream carries it as an error event, which clients raise. A whole answer cannot; the
connection is aborted, the client's own retry comes, and gets the remembered error under its real status.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress

import structlog
from aiohttp import web

from .calls import Call
from .dialect import Asked, Dialect, Frame
from .errors import ApiError, episode_over
from .sessions import Session

log = structlog.get_logger()

GRACE_SECONDS = 1.0
BEAT_SECONDS = 1.0


async def send(request: web.Request, session: Session, call: Call, asked: Asked, dialect: Dialect) -> web.StreamResponse:
    """Answer a request with a call's answer when it is there. Raises ApiError while nothing was sent."""
    call.transport = request.transport
    frame = Frame(call.id, int(time.time()), asked)
    has_answer = await _within(call, GRACE_SECONDS)
    if has_answer and (refusal := _refusal_of(call)) is not None:
        call.was_delivered = True
        raise refusal
    if asked.stream:
        return await _send_stream(request, call, frame, dialect)
    return await _send_whole(request, session, call, frame, dialect)


async def _send_whole(request: web.Request, session: Session, call: Call, frame: Frame, dialect: Dialect) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    with suppress(ConnectionError):
        await response.prepare(request)
        while not await _within(call, BEAT_SECONDS):
            await response.write(b" ")
        refusal = _refusal_of(call)
        if refusal is None:
            await response.write(json.dumps(dialect.whole(frame, call.answer.result())).encode())
            await response.write_eof()
            call.was_delivered = _is_open(request)
        else:
            session.refusals[call.body_digest] = refusal
            if request.transport is not None:
                request.transport.abort()
    return response


async def _send_stream(request: web.Request, call: Call, frame: Frame, dialect: Dialect) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    with suppress(ConnectionError):
        await response.prepare(request)
        await response.write(dialect.opening(frame))
        while not await _within(call, BEAT_SECONDS):
            await response.write(dialect.idle(frame))
        refusal = _refusal_of(call)
        if refusal is None:
            await response.write(b"".join(dialect.rest(frame, call.answer.result())))
        else:
            await response.write(dialect.error_event(frame, refusal))
        await response.write_eof()
        call.was_delivered = _is_open(request)
    return response


async def _within(call: Call, seconds: float) -> bool:
    """Whether the answer is there, waiting for it at most this long. The client may go; the call does not."""
    done, _ = await asyncio.wait({call.answer}, timeout=seconds)
    return bool(done)


def _refusal_of(call: Call) -> ApiError | None:
    if call.answer.cancelled():
        return episode_over()
    if (failure := call.answer.exception()) is not None:
        log.error("call.failed", call=call.id, reason=repr(failure))
        return ApiError(500, "the gateway failed; its log says why", code="internal_error")
    error = call.answer.result().error
    return None if error is None else ApiError.of(error)


def _is_open(request: web.Request) -> bool:
    return request.transport is not None and not request.transport.is_closing()
