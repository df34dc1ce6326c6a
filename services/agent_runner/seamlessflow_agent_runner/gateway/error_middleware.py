"""Errors in the form of the request's dialect. Their messages never repeat a key of a path."""

from __future__ import annotations

import asyncio

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from .api_errors import ApiError
from .dialects.anthropic_answer import AnthropicMessages
from .dialects.base import ApiDialect
from .dialects.openai_chat import ChatCompletions
from .dialects.openai_completions import Completions
from .dialects.openai_responses_answer import Responses

log = structlog.get_logger()

MAX_BODY_BYTES = 16 << 20
"""Far more than any context holds, and so few that other requests wait only briefly while one is read."""
BODY_SECONDS = 60.0
"""How long reading a body may take: a slow one holds a connection and its memory."""
IDLE_SECONDS = 600.0
"""How long a connection may stay without a request, or with one whose head is not complete."""
DIALECTS: tuple[ApiDialect, ...] = (ChatCompletions(), Completions(), Responses(), AnthropicMessages())
COUNT_TOKENS = f"{AnthropicMessages.path}/count_tokens"
_UNREAD = ("body_too_large", "unreadable_body", "body_too_slow")
_POSTS = (*(dialect.path for dialect in DIALECTS), COUNT_TOKENS, "/episodes")
_ROUTES = ", ".join([*(f"POST {path}" for path in _POSTS), "GET /v1/models"])


@web.middleware
async def in_their_form(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refusals as the dialect's clients expect them."""
    try:
        return await handler(request)
    except ApiError as refused:
        error = refused
    except web.HTTPRequestEntityTooLarge:
        error = ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large")
    except (web.RequestPayloadError, ConnectionError) as wrong:  # the latter: its client left within the body
        error = ApiError(400, f"the body cannot be read: {wrong}", code="unreadable_body")
    except web.HTTPException as wrong:
        what = f"{request.method} {_path_of(request)[:100]} is not served here; there are: {_ROUTES}"
        error = ApiError(wrong.status, what, code="unknown_route")
    except Exception:
        log.exception("gateway.failed", path=_path_of(request))
        error = ApiError(500, "the gateway failed; its log says why", code="internal_error")
    response = error.response(dialect_of(request).error_body(error))
    if error.code in _UNREAD:
        response.force_close()  # the rest of the body stands in the way of another request
    return response


async def body_of(request: web.Request) -> bytes:
    """The whole body. Raises ApiError 408 where it does not come within BODY_SECONDS."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        what = f"the body did not come within {BODY_SECONDS:g} seconds; send it in one go"
        raise ApiError(408, what, code="body_too_slow") from None


def dialect_of(request: web.Request) -> ApiDialect:
    """The dialect whose path the request's path begins with; OpenAI's chat completions for others."""
    path = _path_of(request)
    return next((dialect for dialect in DIALECTS if path.startswith(dialect.path)), DIALECTS[0])


def _path_of(request: web.Request) -> str:
    """Without ``/e/<who>``, which may be a key."""
    path = "/" + request.path.lstrip("/")
    return "/" + path.removeprefix("/e/").partition("/")[2] if path.startswith("/e/") else path
