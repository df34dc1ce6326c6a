"""The HTTP server: routes, keys, and errors in the form of the dialect that was spoken, whatever goes wrong."""

from __future__ import annotations

import errno
import hashlib
from typing import TYPE_CHECKING

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from seamlessflow.errors import ConfigError

from . import holding
from .calls import CallDesk
from .chat_answers import ChatCompletions
from .completions_answers import Completions
from .dialect import Dialect
from .errors import ApiError, episode_over
from .messages import estimated_tokens, parse_messages
from .messages_answers import Messages
from .notes import Notes
from .responses_answers import Responses
from .sessions import Session, Sessions

if TYPE_CHECKING:
    from .episode_routes import EpisodeRoutes

log = structlog.get_logger()

MAX_BODY_BYTES = 64 << 20
RETRY_HEADER = "x-stainless-retry-count"
COUNT_TOKENS = f"{Messages.path}/count_tokens"
DIALECTS: tuple[Dialect, ...] = (ChatCompletions(), Completions(), Responses(), Messages())
EPISODE_PREFIX = "/e/{who}"
"""Before any path: the episode, or its key for clients that cannot set one."""
_UNREAD = ("body_too_large", "unreadable_body")
_BY_PATH = {dialect.path: dialect for dialect in DIALECTS}
_ROUTES = ", ".join([*(f"POST {path}" for path in _BY_PATH), f"POST {COUNT_TOKENS}", "GET /v1/models"])


class Gateway:
    """Serves agents until closed. ``base_url`` is what they are told. ``episodes``: routes for agents that run elsewhere."""

    def __init__(self, sessions: Sessions, desk: CallDesk, episodes: EpisodeRoutes | None = None) -> None:
        self._sessions, self._desk, self._episodes = sessions, desk, episodes
        self._notes = Notes()
        self._runner: web.AppRunner | None = None
        self.base_url = ""

    async def open(self, host: str, port: int) -> None:
        """Listen. Raises ConfigError when the address cannot be had."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_in_their_form])
        for prefix in ("", EPISODE_PREFIX):
            for path in _BY_PATH:
                app.router.add_post(prefix + path, self._complete)
            app.router.add_post(prefix + COUNT_TOKENS, self._count_tokens)
            app.router.add_route("HEAD", f"{prefix}/", _alive)
            app.router.add_get(f"{prefix}/v1/models", self._list_models)
            app.router.add_get(prefix + "/v1/models/{model:.+}", self._show_model)
        app.router.add_route("HEAD", EPISODE_PREFIX, _alive)
        if self._episodes is not None:
            self._episodes.register(app.router)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=1024)
        try:
            await site.start()
        except OSError as wrong:
            await self._runner.cleanup()
            what = "is in use" if wrong.errno == errno.EADDRINUSE else f"cannot be listened on: {wrong.strerror}"
            raise ConfigError(
                f"the gateway's address {host}:{port} {what}; "
                "set SEAMLESSFLOW_GATEWAY_PORT to another port, or to 0 for any free one"
            ) from wrong
        bound_port = self._runner.addresses[0][1]
        self.base_url = f"http://{host}:{bound_port}/v1"
        log.info("gateway.listening", base_url=self.base_url)

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        dialect, session = _dialect_of(request), self._session(request)
        raw = await request.read()
        if session.is_over:
            raise episode_over()
        asked = session.memory.completed(dialect.parse(raw))
        self._notes.tell(asked.notes, env=session.opened.env)
        body_digest = hashlib.sha256(raw).hexdigest()
        num_retries = _number(request.headers.get(RETRY_HEADER, "0"))
        call = session.call_to_join(body_digest, num_retries) or self._desk.start(session, asked, body_digest, request)
        try:
            return await holding.send(request, call, asked, dialect)
        finally:
            if call.has_lost_client and not call.answer.done():
                self._desk.client_left(session, call)

    def _session(self, request: web.Request) -> Session:
        """Raises ApiError 401, or 409 when its episode is over."""
        return self._sessions.of(request.headers, request.match_info.get("who"))

    async def _count_tokens(self, request: web.Request) -> web.Response:
        self._session(request)
        return web.json_response({"input_tokens": estimated_tokens(parse_messages(await request.read()))})

    async def _list_models(self, request: web.Request) -> web.Response:
        model = _model(self._session(request).model)
        return web.json_response({"object": "list", "data": [model]})

    async def _show_model(self, request: web.Request) -> web.Response:
        self._session(request)
        return web.json_response(_model(request.match_info["model"]))


async def _alive(request: web.Request) -> web.Response:
    """Claude Code looks whether anybody is there before it asks anything, without a key."""
    return web.Response()


@web.middleware
async def _in_their_form(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as refused:
        error = refused
    except web.HTTPRequestEntityTooLarge:
        error = ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large")
    except (web.RequestPayloadError, ConnectionError) as wrong:  # the latter: its client left within the body
        error = ApiError(400, f"the body cannot be read: {wrong}", code="unreadable_body")
    except web.HTTPException as wrong:
        what = f"{request.method} {request.path[:100]} is not served here; there are: {_ROUTES}"
        error = ApiError(wrong.status, what, code="unknown_route")
    except Exception:
        log.exception("gateway.failed", path=_path_of(request))
        error = ApiError(500, "the gateway failed; its log says why", code="internal_error")
    response = error.response(_dialect_of(request).error_body(error))
    if error.code in _UNREAD:
        response.force_close()  # the rest of the body stands in the way of another request
    return response


def _dialect_of(request: web.Request) -> Dialect:
    """By the path, or for another path by what it begins with."""
    path = _path_of(request)
    return next((dialect for dialect in DIALECTS if path.startswith(dialect.path)), DIALECTS[0])


def _path_of(request: web.Request) -> str:
    """Without ``/e/<who>``, which may be a key."""
    path = request.path
    return "/" + path.removeprefix("/e/").partition("/")[2] if path.startswith("/e/") else path


def _model(name: str) -> dict[str, str | int]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "seamlessflow"}


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
