"""The HTTP server of the gateway: its routes, and the call that answers each request."""

from __future__ import annotations

import errno
import hashlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from seamlessflow.errors import ConfigError

from . import response_writer
from .api_errors import episode_over
from .call_requests import CallRequests
from .dialects.anthropic_request import estimated_tokens, parse_messages
from .dialects.base import ApiDialect
from .error_middleware import COUNT_TOKENS, DIALECTS, IDLE_SECONDS, MAX_BODY_BYTES, body_of, dialect_of, in_their_form
from .sessions import Session, Sessions

if TYPE_CHECKING:
    from .episode_routes import EpisodeRoutes


_UNIX_EPOCH = "1970-01-01T00:00:00Z"
"""Anthropic's API gives it for unknown dates."""


def listed_models(name: str) -> dict[str, Any]:
    """The body of GET /v1/models: the one model."""
    return {"object": "list", "data": [shown_model(name)], "has_more": False, "first_id": name, "last_id": name}


def shown_model(name: str) -> dict[str, Any]:
    """The one model, by any name: fields that OpenAI's clients read, and those that Anthropic's do."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "seamlessflow"}
    return {**openai, "type": "model", "display_name": name, "created_at": _UNIX_EPOCH, "lifecycle": "active"}


log = structlog.get_logger()


class Notes:
    """Logs request fields that are not followed, once each per process: agents send the same with every call."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log_new(self, notes: Iterable[str], *, env: str) -> None:
        """Log those that are new. ``env``: of the first agent that asked."""
        for note in notes:
            if note not in self._logged:
                self._logged.add(note)
                log.warning("request.not_followed", env=env, reason=note)


RETRY_HEADER = "x-stainless-retry-count"
EPISODE_PREFIX = "/e/{who}"
"""Before any path: the episode, or its key for clients that cannot set one."""
STREAM_KEY = re.compile(rb'"stream"\s*:\s*true')
"""Quotes within a text are escaped there, so it is a key: of the body, or of something in it."""


class Gateway:
    """Serves agents until closed. ``base_url``: its address for agents. ``episodes``: routes for agents that run elsewhere."""

    def __init__(self, sessions: Sessions, calls: CallRequests, episodes: EpisodeRoutes | None = None) -> None:
        self._sessions, self._calls, self._episodes = sessions, calls, episodes
        self._notes = Notes()
        self._runner: web.AppRunner | None = None
        self.base_url = ""

    async def open(self, host: str, port: int) -> None:
        """Listen. Raises ConfigError when the address cannot be bound."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[in_their_form])
        for prefix in ("", EPISODE_PREFIX):
            for dialect in DIALECTS:
                app.router.add_post(prefix + dialect.path, self._complete)
            app.router.add_post(prefix + COUNT_TOKENS, self._count_tokens)
            app.router.add_route("HEAD", f"{prefix}/", _alive)
            app.router.add_get(f"{prefix}/v1/models", self._list_models)
            app.router.add_get(prefix + "/v1/models/{model:.+}", self._show_model)
        app.router.add_route("HEAD", EPISODE_PREFIX, _alive)
        if self._episodes is not None:
            self._episodes.register(app.router)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=1.0, keepalive_timeout=IDLE_SECONDS
        )
        await self._runner.setup()
        shown_host = f"[{host}]" if ":" in host else host
        site = web.TCPSite(self._runner, host, port, backlog=1024)
        try:
            await site.start()
        except OSError as wrong:
            await self._runner.cleanup()
            what = "is in use" if wrong.errno == errno.EADDRINUSE else f"cannot be listened on: {wrong.strerror}"
            raise ConfigError(
                f"the gateway's address {shown_host}:{port} {what}; "
                "set SEAMLESSFLOW_GATEWAY_PORT to another port, or to 0 for any free one"
            ) from wrong
        bound_port = self._runner.addresses[0][1]
        self.base_url = f"http://{shown_host}:{bound_port}/v1"
        log.info("gateway.listening", base_url=self.base_url)

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        dialect, session = dialect_of(request), self._session(request)
        raw = await body_of(request)
        if session.is_over:
            raise episode_over()
        asked = session.previous_responses.completed(dialect.parse(raw))
        self._notes.log_new(asked.notes, env=session.opened.env)
        body_digest = digest_of(dialect, raw, is_stream=asked.stream)
        num_retries = _number(request.headers.get(RETRY_HEADER, "0"))
        call = session.call_to_join(body_digest, num_retries) or self._calls.start(session, asked, body_digest)
        client = request.transport
        call.join(client)
        try:
            return await response_writer.send(request, call, asked, dialect)
        finally:
            call.leave(client)
            if call.has_lost_client and not call.is_answered:
                self._calls.client_left(session, call)

    def _session(self, request: web.Request) -> Session:
        """Raises ApiError 401, or 409 when its episode is over."""
        return self._sessions.of(request.headers, request.match_info.get("who"))

    async def _count_tokens(self, request: web.Request) -> web.Response:
        self._session(request)
        return web.json_response({"input_tokens": estimated_tokens(parse_messages(await body_of(request)))})

    async def _list_models(self, request: web.Request) -> web.Response:
        return web.json_response(listed_models(self._session(request).model))

    async def _show_model(self, request: web.Request) -> web.Response:
        self._session(request)
        return web.json_response(shown_model(request.match_info["model"]))


async def _alive(request: web.Request) -> web.Response:
    """Claude Code probes the server before its first request, without a key."""
    return web.Response()


def digest_of(dialect: ApiDialect, raw: bytes, *, is_stream: bool) -> bytes:
    """SHA-256 of a request, the same for a repetition; the dialect is part of it.

    A client that gave a stream up may ask for the same as a whole (Claude Code does, after five minutes without text), so the
    member that turns streaming on is left out, where the body has only one candidate.
    """
    found = [*STREAM_KEY.finditer(raw)] if is_stream else []
    if len(found) == 1:
        raw = _without(raw, found[0].start(), found[0].end())
    return hashlib.sha256(dialect.path.encode() + b"\0" + raw).digest()


def _without(raw: bytes, start: int, end: int) -> bytes:
    """JSON without one member of an object, as if it had never been written."""
    before, after = raw[:start].rstrip(), raw[end:]
    if before.endswith(b","):
        return before.removesuffix(b",") + after
    return before + after.lstrip().removeprefix(b",").lstrip()


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
