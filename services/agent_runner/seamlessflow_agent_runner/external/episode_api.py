"""Requests of agents that run elsewhere: they open an episode and report its result.

Ended episodes are remembered, so that a repeated report gets the same answer.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from typing_extensions import override

from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import EpisodeEnded, RunEnded, TaskSubmitted
from seamlessflow.errors import BadInput, SeamlessFlowError
from seamlessflow.runtime import Journal
from seamlessflow_agent_runner.episodes.episode_attempt import ExternalEpisodes, RunningEpisode
from seamlessflow_agent_runner.gateway.api_errors import ApiError, bad_request

from .episode_queue import EpisodeQueue, WaitingClient
from .external_episode import ExternalEpisode, Report


class NoEpisode(Exception):
    """No episode came in time; the message says why. ``task``: the requested task; a repeated request with it loses nothing."""

    def __init__(self, message: str, task: str | None) -> None:
        super().__init__(message)
        self.message, self.task = message, task


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """The body of POST /episodes. None: any run, environment or task."""

    run: str | None = None
    env: str | None = None
    task: str | None = None
    """Only an episode of this task."""
    prompt: str | None = None
    """Not None: submit a new task, named ``task`` or by a fresh name."""
    data: Mapping[str, Any] | None = None
    wait_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class ServedRun:
    """The run that this gateway serves, and the queues of its external environments."""

    run: str
    config: RunConfig
    queues: Mapping[str, EpisodeQueue]


def env_of(request: EpisodeRequest, config: RunConfig) -> str:
    """The requested environment. Raises ApiError that names the known ones."""
    external = [agent.env for agent in config.agents if agent.external]
    if request.env is None and len(external) == 1:
        return external[0]
    if request.env in external:
        return str(request.env)
    known = ", ".join(external) or "none"
    if request.env is None and external:
        raise bad_request(f"env must name one: this run's environments of external agents are {known}", "env")
    raise ApiError(
        404,
        f"no external agent of this run has env {request.env!r}; those that have one: {known}",
        code="unknown_env",
        param="env",
    )


def why_not_served(request: EpisodeRequest, serving: ServedRun | None) -> str:
    """Reason, for people, why the requested run or environment is not served."""
    if serving is None:
        return f"this gateway serves no run now; waited {request.wait_seconds:g} s for the scheduler to give it one"
    if request.run not in (None, serving.run):
        return f"this gateway serves run {serving.run} now, and not {request.run}"
    return f"this gateway does not hold that environment of run {serving.run} yet"


def why_none(serving: ServedRun, env: str, task: str | None, num_open: int) -> str:
    """Reason, for people, why there is no episode. ``num_open``: episodes of external agents that are open here."""
    most = serving.config.fleet.agents
    if num_open >= most:
        return f"{num_open} episodes of external agents are open here, which is all fleet.agents = {most} allows"
    what = f"task {task} has no" if task is not None else f"environment {env} has no"
    return f"{what} episode for now: the scheduler admits more as training gets on"


async def publish_task(journal: Journal, request: EpisodeRequest, run: str, env: str, task: str, deadline: float) -> None:
    """Publish TaskSubmitted for a task that the agent brings; the same name again changes nothing.

    deadline: of the monotonic clock, in seconds.

    Raises ApiError 400, and NoEpisode when the journal does not answer in time.
    """
    try:
        event = TaskSubmitted(run=run, task=task, env=env, prompt=request.prompt or "", data=dict(request.data or {}))
        async with asyncio.timeout(max(1.0, deadline - time.monotonic())):
            await journal.publish(event)
    except ValidationError as wrong:
        raise bad_request("; ".join(f"{e['loc'][0]}: {e['msg']}" for e in wrong.errors()), "task") from wrong
    except BadInput as wrong:
        raise bad_request(f"this task cannot be published: {wrong}") from wrong
    except (SeamlessFlowError, TimeoutError) as wrong:
        raise NoEpisode(f"task {task} may not have been published: the journal does not answer", task) from wrong


NUM_REMEMBERED = 4096
LOOK_SECONDS = 0.25
"""How often a request checks whether its run is served now."""
HERE_SECONDS = 1.0
"""How often a waiting request checks that its client is still connected; it is checked before each hand-out, too."""
PULL_SECONDS = 0.5
"""Shortest wait, so that a request without waiting still gets an episode that lies in the queue."""
RUN_OVER_SECONDS = 2.0
"""Longest wait for the journal's answer whether a run is over."""


@dataclass(frozen=True, slots=True)
class EndedEpisode:
    """An episode that ended here."""

    key: str
    report_digest: str | None
    end: EpisodeEnded
    has_our_end: bool


class EpisodeApi(ExternalEpisodes):
    """Opens and ends the episodes of external agents; one per gateway. ``RunnerRun`` sets ``serving``."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.serving: ServedRun | None = None
        self.is_closing = False
        """The gateway stops: requests end without an episode."""
        self._live: dict[str, ExternalEpisode] = {}
        self._past: dict[str, EndedEpisode] = {}

    def key_of(self, episode: str) -> str | None:
        """The episode's key, or None when it is not known here."""
        if (past := self._past.get(episode)) is not None:
            return past.key
        live = self._live.get(episode)
        return live.session.key if live is not None and live.session is not None else None

    def live(self, episode: str) -> ExternalEpisode | None:
        """A running episode by its id; None when it is not running here."""
        return self._live.get(episode)

    def past(self, episode: str) -> EndedEpisode | None:
        """An ended episode by its id; None when it is unknown or forgotten."""
        return self._past.get(episode)

    @override
    def hand_out(self, episode: RunningEpisode) -> None:
        assert isinstance(episode, ExternalEpisode)
        self._live[episode.opened.episode] = episode

    @override
    def file(self, episode: RunningEpisode) -> None:
        assert isinstance(episode, ExternalEpisode)
        self._live.pop(episode.opened.episode, None)
        if episode.session is None or episode.end is None:
            return
        digest = None if episode.report is None else episode.report.digest
        self._past[episode.opened.episode] = EndedEpisode(episode.session.key, digest, episode.end, episode.has_our_end)
        while len(self._past) > NUM_REMEMBERED:
            del self._past[next(iter(self._past))]

    async def open(self, request: EpisodeRequest, is_there: Callable[[], bool]) -> ExternalEpisode:
        """Start the next episode that fits. ``is_there``: whether the client is still connected. Raises ApiError, NoEpisode."""
        deadline = time.monotonic() + request.wait_seconds
        task = request.task
        is_published = request.prompt is None
        while True:
            env, serving = await self._served(request, deadline, is_there)
            if not is_published:
                if task is None:
                    await self._place(serving, env, deadline, is_there)
                task = task or f"x-{secrets.token_hex(8)}"
                await publish_task(self._journal, request, serving.run, env, task, deadline)
                is_published = True
            queue, client = serving.queues[env], WaitingClient(task, is_there=is_there)
            queue.ask(client)
            try:
                episode = await _handed(client, max(deadline, time.monotonic() + PULL_SECONDS))
            except BaseException:
                if client.handed.done() and (unreceived := client.handed.result()) is not None:
                    unreceived.abandon()
                raise
            finally:
                queue.withdraw(client)
            if episode is not None:
                return episode
            if self.serving is serving:
                raise NoEpisode(why_none(serving, env, task, len(self._live)), task)

    async def report(self, episode: str, report: Report) -> EpisodeEnded:
        """End a known episode with a report. Raises ApiError when it ended with another one before."""
        if (live := self._live.get(episode)) is not None:
            if not live.take(report):
                raise _ended_otherwise("it is being ended with another report" if live.report else "it is ending")
            await live.over.wait()
            if live.end is None:
                raise ApiError(503, "the end of this episode could not be stored", code="not_stored")
            if not live.has_our_end:
                raise _ended_otherwise(_end_text(live.end))
            return live.end
        past = self._past[episode]
        if not past.has_our_end or past.report_digest != report.digest:
            raise _ended_otherwise(_end_text(past.end))
        return past.end

    async def _served(self, request: EpisodeRequest, deadline: float, is_there: Callable[[], bool]) -> tuple[str, ServedRun]:
        """The requested environment, once its run is served here."""
        asked_for_end = False
        while True:
            serving = self.serving
            if self.is_closing:
                raise NoEpisode("this gateway stops", request.task)
            if serving is not None and request.run in (None, serving.run):
                env = env_of(request, serving.config)
                if env in serving.queues:
                    return env, serving
            elif request.run is not None and not asked_for_end:
                await self._refuse_if_over(request.run)
                asked_for_end = True
            if time.monotonic() >= deadline or not is_there():
                raise NoEpisode(why_not_served(request, serving), request.task)
            await asyncio.sleep(min(LOOK_SECONDS, max(0.01, deadline - time.monotonic())))

    async def _place(self, serving: ServedRun, env: str, deadline: float, is_there: Callable[[], bool]) -> None:
        """Wait until one more episode may be open. A task published earlier would be published anew by each repetition."""
        while (num_open := len(self._live)) >= serving.config.fleet.agents:
            if time.monotonic() >= deadline or self.serving is not serving or not is_there():
                raise NoEpisode(why_none(serving, env, None, num_open), None)
            await asyncio.sleep(min(LOOK_SECONDS, max(0.01, deadline - time.monotonic())))

    async def _refuse_if_over(self, run: str) -> None:
        found = None
        with suppress(SeamlessFlowError, TimeoutError):
            async with asyncio.timeout(RUN_OVER_SECONDS):
                found = await self._journal.first(RunEnded, run)
        if found is not None:
            raise ApiError(410, f"run {run} is over: {found.reason}", code="run_over")


async def _handed(client: WaitingClient, deadline: float) -> ExternalEpisode | None:
    """The client's episode. None: the run was left, the client is gone, or time is over and no start is under way."""
    while not client.handed.done() and client.is_there():
        left = HERE_SECONDS if client.is_claimed else deadline - time.monotonic()
        if left <= 0:
            break
        await asyncio.wait({client.handed}, timeout=min(left, HERE_SECONDS))
    return client.handed.result() if client.handed.done() else None


def _ended_otherwise(how: str) -> ApiError:
    return ApiError(409, f"this report was not taken: {how}", code="episode_over")


def _end_text(end: EpisodeEnded) -> str:
    what = f"the episode ended before as {end.status.value}"
    return f"{what}: {end.reason}" if end.reason else what
