"""Episodes over HTTP, for agents that run elsewhere.

POST /episodes               201: the next one, started, with its key     503: none for now
GET  /episodes/{id}          200: its state
POST /episodes/{id}/reward   200: it has ended, with this report          409: it ended otherwise
"""

from __future__ import annotations

import math
from typing import Any

from aiohttp import web

from seamlessflow.config.sampling_sections import REPORTED, AgentSection
from seamlessflow.contracts import EpisodeEnded
from seamlessflow_agent_runner.episodes.agent_launch import task_for_agent
from seamlessflow_agent_runner.external.episode_api import EpisodeApi, EpisodeRequest, NoEpisode
from seamlessflow_agent_runner.external.external_episode import ExternalEpisode, Report

from .api_errors import bad_request
from .auth import Access
from .dialects.request_fields import json_object, kind_of
from .error_middleware import body_of

MAX_WAIT_SECONDS = 600.0
_FIELDS = {"run": str, "env": str, "task": str, "prompt": str, "data": dict, "wait_seconds": (int, float)}


def parse_episode_request(raw: bytes) -> EpisodeRequest:
    """The body of POST /episodes; an empty one asks for any episode. Raises ApiError 400."""
    body = json_object(raw) if raw.strip() else {}
    for name, value in body.items():
        if name not in _FIELDS:
            raise bad_request(f"unknown field {name!r}; known: {', '.join(_FIELDS)}", name)
        if value is not None and (not isinstance(value, _FIELDS[name]) or isinstance(value, bool)):  # type: ignore[arg-type]
            raise bad_request(f"{name} cannot be {kind_of(value)}", name)
    wanted = EpisodeRequest(**{name: value for name, value in body.items() if value is not None})
    if not 0 <= wanted.wait_seconds <= MAX_WAIT_SECONDS:
        raise bad_request(f"wait_seconds must be from 0 to {MAX_WAIT_SECONDS:g}", "wait_seconds")
    if wanted.prompt is not None and not wanted.prompt.strip():
        raise bad_request("prompt must describe the task; leave it out to take any episode", "prompt")
    if wanted.data is not None and wanted.prompt is None:
        raise bad_request("data belongs to a new task, which needs a prompt", "data")
    return wanted


def parse_report(raw: bytes, agent: AgentSection | None) -> Report:
    """The body of a reward. ``agent`` None: the episode is over, and the report is only compared. Raises ApiError 400."""
    body = json_object(raw)
    if len(body) != 1 or not body.keys() <= {"reward", "answer", "failed"}:
        raise bad_request('the body must be one of {"reward": number}, {"answer": "text"} and {"failed": "why"}')
    ((name, value),) = body.items()
    if name == "reward":
        return _reward(value, agent)
    if not isinstance(value, str):
        raise bad_request(f"{name} must be text, got {kind_of(value)}", name)
    if name == "failed":
        return Report(failed=value)
    if agent is not None and agent.reward == REPORTED:
        raise bad_request('this environment has reward = "reported": send {"reward": number}', name)
    if agent is not None and len(value.encode()) > agent.output_bytes:
        raise bad_request(f"the answer is longer than {agent.output_bytes} bytes (output_bytes)", name)
    return Report(answer=value)


def _reward(value: Any, agent: AgentSection | None) -> Report:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise bad_request(f"reward must be a finite number, got {kind_of(value)}", "reward")
    if agent is not None and agent.reward != REPORTED:
        raise bad_request(
            f'answers of this environment are judged by {agent.reward}: send {{"answer": "text"}}, '
            'or set reward = "reported" in the run file',
            "reward",
        )
    return Report(reward=float(value))


RETRY_SECONDS = 1
URL_SETTING = "SEAMLESSFLOW_GATEWAY_URL"


class EpisodeRoutes:
    """The routes below /episodes. ``public_url``: the gateway's address for agents. None: the one that a request used."""

    def __init__(self, episodes: EpisodeApi, access: Access, public_url: str | None) -> None:
        self._episodes, self._access = episodes, access
        self._public_url = None if public_url is None else public_url.rstrip("/").removesuffix("/v1")

    def register(self, router: web.UrlDispatcher) -> None:
        """Add the routes to a server."""
        router.add_post("/episodes", self._open)
        router.add_get("/episodes/{episode}", self._show)
        router.add_post("/episodes/{episode}/reward", self._end)

    async def _open(self, request: web.Request) -> web.StreamResponse:
        self._access.check_may_open(request.headers)
        wanted = parse_episode_request(await body_of(request))
        root = self._root(request)  # it may raise: before an episode is started

        def is_there() -> bool:
            return request.transport is not None and not request.transport.is_closing()

        try:
            episode = await self._episodes.open(wanted, is_there)
        except NoEpisode as none:
            return _none_for_now(none)
        response: web.StreamResponse = web.Response()
        try:
            response = web.json_response(_shown(episode, root), status=201)
            if not is_there():
                raise ConnectionResetError
            await response.prepare(request)
            await response.write_eof()
        except ConnectionError:
            episode.abandon()
        except BaseException:  # the client never received the episode
            episode.abandon()
            raise
        return response

    async def _show(self, request: web.Request) -> web.Response:
        name = self._named(request)
        past, live = self._episodes.past(name), self._episodes.live(name)
        if past is not None:
            return web.json_response(_end_shown(past.end))
        assert live is not None
        return web.json_response(_state_shown(live))

    async def _end(self, request: web.Request) -> web.Response:
        name = self._named(request)
        raw = await body_of(request)
        live = self._episodes.live(name)
        report = parse_report(raw, None if live is None else live.agent)
        return web.json_response(_end_shown(await self._episodes.report(self._named(request), report)))

    def _named(self, request: web.Request) -> str:
        """The id of a known episode, if the request may end it. Raises ApiError."""
        name = request.match_info["episode"]
        self._access.check_may_end(request.headers, self._episodes.key_of(name))
        return name

    def _root(self, request: web.Request) -> str:
        """The gateway's address for the client of a request. Raises ApiError 400."""
        try:
            return self._public_url or str(request.url.origin())
        except ValueError as wrong:
            what = f"the Host header is no address: {wrong}; send the one this gateway is reached at, or set {URL_SETTING}"
            raise bad_request(what, "Host") from wrong


def _shown(episode: ExternalEpisode, root: str) -> dict[str, Any]:
    assert episode.session is not None
    key, opened = episode.session.key, episode.opened
    return {
        "episode": opened.episode,
        "run": opened.run,
        "env": opened.env,
        "task": opened.origin.task,
        "group": opened.origin.group,
        "index": opened.origin.index,
        "attempt": opened.origin.attempt,
        "prompt": opened.prompt,
        "data": task_for_agent(opened)["data"],
        "base_url": f"{root}/v1",
        "path_base_url": f"{root}/e/{key}/v1",
        "api_key": key,
        "deadline_seconds": episode.deadline_seconds,
    }


def _none_for_now(none: NoEpisode) -> web.Response:
    error = {"message": none.message, "type": "server_error", "param": None, "code": "no_episode"}
    body = {"error": error, **({} if none.task is None else {"task": none.task})}
    return web.json_response(body, status=503, headers={"Retry-After": str(RETRY_SECONDS)})


def _state_shown(episode: ExternalEpisode) -> dict[str, Any]:
    session = episode.session
    assert session is not None
    state = "open" if episode.report is None else "judging"
    left = max(0.0, episode.deadline_seconds - session.time.seconds)
    return {
        "episode": episode.opened.episode, "state": state, "task": episode.opened.origin.task,
        "group": episode.opened.origin.group, "num_calls": len(session.calls), "seconds_left": round(left, 3),
    }  # fmt: skip


def _end_shown(end: EpisodeEnded) -> dict[str, Any]:
    return {
        "episode": end.episode, "state": "ended", "task": end.origin.task, "group": end.origin.group,
        "status": end.status.value, "reason": end.reason, "reward": end.reward, "num_calls": end.num_calls,
        "undelivered": list(end.undelivered), "wall_seconds": round(end.wall_seconds, 3),
    }  # fmt: skip
