"""Where agents that run elsewhere ask for an episode and say how it went. Remembers episodes that ended, for repetitions."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import EpisodeEnded, RunEnded, TaskSubmitted
from seamlessflow.errors import BadInput, SeamlessFlowError
from seamlessflow.runtime import Journal
from seamlessflow_agent_runner.gateway.api_errors import ApiError, bad_request

from .episode_queue import Asking, Outlet
from .external_episode import ExternalEpisode, Report

# What agents that run elsewhere ask for, and the words for why there is none of it. Pure.


class NoEpisode(Exception):
    """None came in time; the message says why. ``task``: the task it was for; asking for it again loses nothing."""

    def __init__(self, message: str, task: str | None) -> None:
        super().__init__(message)
        self.message, self.task = message, task


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks for."""

    run: str | None = None
    env: str | None = None
    task: str | None = None
    """Of this task only."""
    prompt: str | None = None
    """Not None: a new task, named ``task`` or anew."""
    data: Mapping[str, Any] | None = None
    wait_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Serving:
    """The run this gateway is a member of, and its external environments that it holds."""

    run: str
    config: RunConfig
    outlets: Mapping[str, Outlet]


def env_of(ask: Ask, config: RunConfig) -> str:
    """Which environment is asked for. Raises ApiError that names those there are."""
    external = [agent.env for agent in config.agents if agent.external]
    if ask.env is None and len(external) == 1:
        return external[0]
    if ask.env in external:
        return str(ask.env)
    known = ", ".join(external) or "none"
    if ask.env is None and external:
        raise bad_request(f"env must say which: this run's environments of external agents are {known}", "env")
    raise ApiError(
        404, f"no external agent of this run has env {ask.env!r}; those that have one: {known}", code="unknown_env", param="env"
    )


def why_not_served(ask: Ask, serving: Serving | None) -> str:
    """For people."""
    if serving is None:
        return f"this gateway serves no run now; waited {ask.wait_seconds:g} s for the scheduler to give it one"
    if ask.run not in (None, serving.run):
        return f"this gateway serves run {serving.run} now, and not {ask.run}"
    return f"this gateway does not hold that environment of run {serving.run} yet"


def why_none(serving: Serving, env: str, task: str | None, num_open: int) -> str:
    """For people. ``num_open``: episodes of external agents that are open here."""
    most = serving.config.fleet.agents
    if num_open >= most:
        return f"{num_open} episodes of external agents are open here, which is all fleet.agents = {most} allows"
    what = f"task {task} has no" if task is not None else f"environment {env} has no"
    return f"{what} episode for now: the scheduler admits more as training gets on"


# Tasks that agents elsewhere bring with them: each becomes a TaskSubmitted.


async def publish_task(journal: Journal, ask: Ask, run: str, env: str, task: str, deadline: float) -> None:
    """Publish what is asked for as ``task``; again under the same name changes nothing. ``deadline``: of the monotonic clock.

    Raises ApiError 400, and NoEpisode when the journal does not answer in time.
    """
    try:
        said = TaskSubmitted(run=run, task=task, env=env, prompt=ask.prompt or "", data=dict(ask.data or {}))
        async with asyncio.timeout(max(1.0, deadline - time.monotonic())):
            await journal.publish(said)
    except ValidationError as wrong:
        raise bad_request("; ".join(f"{e['loc'][0]}: {e['msg']}" for e in wrong.errors()), "task") from wrong
    except BadInput as wrong:
        raise bad_request(f"this task cannot be published: {wrong}") from wrong
    except (SeamlessFlowError, TimeoutError) as wrong:
        raise NoEpisode(f"task {task} may not have been published: the journal does not answer", task) from wrong


NUM_REMEMBERED = 4096
LOOK_SECONDS = 0.25
"""How often a request looks whether its run is served now."""
HERE_SECONDS = 1.0
"""How often a waiting request looks whether its client is still there. None is handed out without looking."""
PULL_SECONDS = 0.5
"""Even who does not want to wait gets what lies in the queue."""
RUN_OVER_SECONDS = 2.0
"""How long the journal may take to say whether a run is over."""


@dataclass(frozen=True, slots=True)
class Past:
    """An episode that ended here."""

    key: str
    report_digest: str | None
    end: EpisodeEnded
    has_our_end: bool


class EpisodeDesk:
    """One for a gateway. The membership in a run tells it what there is."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.serving: Serving | None = None
        self.is_closing = False
        """The gateway stops: nobody is to wait here any more."""
        self._live: dict[str, ExternalEpisode] = {}
        self._past: dict[str, Past] = {}

    def key_of(self, episode: str) -> str | None:
        """The episode's key, or None when it is not known here."""
        if (past := self._past.get(episode)) is not None:
            return past.key
        live = self._live.get(episode)
        return live.session.key if live is not None and live.session is not None else None

    def live(self, episode: str) -> ExternalEpisode | None:
        return self._live.get(episode)

    def past(self, episode: str) -> Past | None:
        return self._past.get(episode)

    def hand_out(self, episode: ExternalEpisode) -> None:
        """Reports on it are taken from now on."""
        self._live[episode.opened.episode] = episode

    def file(self, episode: ExternalEpisode) -> None:
        """It is over. Its calls are forgotten, how it ended is not."""
        self._live.pop(episode.opened.episode, None)
        if episode.session is None or episode.end is None:
            return
        digest = None if episode.report is None else episode.report.digest
        self._past[episode.opened.episode] = Past(episode.session.key, digest, episode.end, episode.has_our_end)
        while len(self._past) > NUM_REMEMBERED:
            del self._past[next(iter(self._past))]

    async def open(self, ask: Ask, is_there: Callable[[], bool]) -> ExternalEpisode:
        """The next episode that fits, started. ``is_there``: whether the client still waits. Raises ApiError, NoEpisode."""
        deadline = time.monotonic() + ask.wait_seconds
        task = ask.task
        is_said = ask.prompt is None
        while True:
            env, serving = await self._served(ask, deadline, is_there)
            if not is_said:
                if task is None:
                    await self._place(serving, env, deadline, is_there)
                task = task or f"x-{secrets.token_hex(8)}"
                await publish_task(self._journal, ask, serving.run, env, task, deadline)
                is_said = True
            outlet, asking = serving.outlets[env], Asking(task, is_there=is_there)
            outlet.ask(asking)
            try:
                episode = await _handed(asking, max(deadline, time.monotonic() + PULL_SECONDS))
            except BaseException:
                if asking.handed.done() and (unheard := asking.handed.result()) is not None:
                    unheard.abandon()
                raise
            finally:
                outlet.withdraw(asking)
            if episode is not None:
                return episode
            if self.serving is serving:
                raise NoEpisode(why_none(serving, env, task, len(self._live)), task)

    async def report(self, episode: str, report: Report) -> EpisodeEnded:
        """End an episode that is known here. Raises ApiError: it ended otherwise before."""
        if (live := self._live.get(episode)) is not None:
            if not live.take(report):
                raise _ended_otherwise("it is being ended with another report" if live.report else "it is ending")
            await live.over.wait()
            if live.end is None:
                raise ApiError(503, "the end of this episode could not be stored", code="not_stored")
            if not live.has_our_end:
                raise _ended_otherwise(_words(live.end))
            return live.end
        past = self._past[episode]
        if not past.has_our_end or past.report_digest != report.digest:
            raise _ended_otherwise(_words(past.end))
        return past.end

    async def _served(self, ask: Ask, deadline: float, is_there: Callable[[], bool]) -> tuple[str, Serving]:
        """Which environment is asked for, once its run is served here."""
        asked_for_end = False
        while True:
            serving = self.serving
            if self.is_closing:
                raise NoEpisode("this gateway stops", ask.task)
            if serving is not None and ask.run in (None, serving.run):
                env = env_of(ask, serving.config)
                if env in serving.outlets:
                    return env, serving
            elif ask.run is not None and not asked_for_end:
                await self._refuse_if_over(ask.run)
                asked_for_end = True
            if time.monotonic() >= deadline or not is_there():
                raise NoEpisode(why_not_served(ask, serving), ask.task)
            await asyncio.sleep(min(LOOK_SECONDS, max(0.01, deadline - time.monotonic())))

    async def _place(self, serving: Serving, env: str, deadline: float, is_there: Callable[[], bool]) -> None:
        """Wait until one more may be open here. A task published before would be published anew by each repetition."""
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


async def _handed(asking: Asking, deadline: float) -> ExternalEpisode | None:
    """None: the run was left, the client is gone, or the time is over; but what is being started for it is waited for."""
    while not asking.handed.done() and asking.is_there():
        left = HERE_SECONDS if asking.is_claimed else deadline - time.monotonic()
        if left <= 0:
            break
        await asyncio.wait({asking.handed}, timeout=min(left, HERE_SECONDS))
    return asking.handed.result() if asking.handed.done() else None


def _ended_otherwise(how: str) -> ApiError:
    return ApiError(409, f"this report was not taken: {how}", code="episode_over")


def _words(end: EpisodeEnded) -> str:
    what = f"the episode ended before as {end.status.value}"
    return f"{what}: {end.reason}" if end.reason else what
