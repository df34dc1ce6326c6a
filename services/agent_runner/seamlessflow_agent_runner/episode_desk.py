"""Where agents that run elsewhere ask for an episode and say how it went. Remembers episodes that ended, for repetitions."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from seamlessflow.contracts import EpisodeEnded, RunEnded
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.runtime import Speaker

from .asks import Ask, NoEpisode, Serving, env_of, why_none, why_not_served
from .external import ExternalEpisode, Report
from .gateway.errors import ApiError
from .new_tasks import say_task
from .outlet import Asking

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

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
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
                await say_task(self._speaker, ask, serving.run, env, task, deadline)
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
                found = await self._speaker.first(RunEnded, run)
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
