"""The episodes that run here for one run: each once, however often it is delivered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial

from seamlessflow.bus.base import PROGRESS_SECONDS, Delivery
from seamlessflow.contracts import EpisodeEnded, EpisodeOpened, EpisodeStarted, EpisodeStatus
from seamlessflow.run_config import RunConfig

from .agents import Verdict
from .episodes import LOST, Attempt, Episode, Surroundings, ended
from .external import ExternalEpisode
from .hosted import HostedEpisode
from .outlet import Outlet
from .pinning import Pinning
from .rewards import Judge

DOUBT_SECONDS = 2.5 * PROGRESS_SECONDS
"""An episode that another gateway began is handed back once for so long: after an outage of the server all that it holds is
given anew to anybody, and one that lives pings within this time and so has it back."""
DOUBT_COUNTS_SECONDS = 60.0
"""If it comes again within this time, nobody has it."""


class InDoubt(Exception):
    """Another gateway began it, which may be alive."""


class Running:
    """Starts episodes and waits for their ends."""

    def __init__(
        self, around: Surroundings, config: RunConfig, judges: Mapping[str, Judge], pinning: Pinning | None = None
    ) -> None:
        self._around, self._config, self._judges, self._pinning = around, config, judges, pinning
        self._running: dict[str, tuple[asyncio.Task[bool], Episode]] = {}
        self._tried: set[str] = set()
        """Episodes that we began, or may have: the journal went away meanwhile."""
        self._doubted: dict[str, float] = {}
        """When episodes that others began came here first (monotonic seconds)."""
        self._is_leaving = False

    def __len__(self) -> int:
        return len(self._running)

    def stop(self) -> None:
        """Start no more, and end all soon."""
        self._is_leaving = True
        for _, episode in self._running.values():
            episode.stop()

    async def is_done(self, opened: EpisodeOpened, delivery: Delivery, outlet: Outlet | None) -> bool:
        """Run it, or wait for it when it runs here already. False: somebody else should, we are leaving or full.

        Raises InDoubt, Unavailable.
        """
        if opened.episode not in self._running:
            agent = self._config.agent(opened.env)
            if agent is None:
                verdict = Verdict(EpisodeStatus.NOT_STARTED, f"the run has no agent for environment tag {opened.env!r}")
                await self._around.speaker.say(ended(opened, verdict))
                return True
            attempt = Attempt(opened, agent, self._judges[opened.env], self._config.model.name, self._pinning)
            if agent.external and outlet is not None and await self._is_over(opened):
                outlet.found_lost()
                return True
            if not (await self._begin_external(attempt, delivery, outlet) if agent.external else self._begin_hosted(attempt)):
                return False
        if outlet is not None:
            outlet.settled(delivery)
        return await asyncio.shield(self._running[opened.episode][0])

    async def _is_over(self, opened: EpisodeOpened) -> bool:
        """Whether nobody is to have it: it has ended, or it was begun by a gateway that was killed, which is said now.

        Raises InDoubt.
        """
        speaker = self._around.speaker
        if await speaker.first(EpisodeEnded, opened.run, episode=opened.episode) is not None:
            return True
        started = await speaker.first(EpisodeStarted, opened.run, episode=opened.episode)
        if started is None or opened.episode in self._tried:
            return False
        now = time.monotonic()
        self._doubted = {name: at for name, at in self._doubted.items() if now - at < DOUBT_COUNTS_SECONDS}
        if opened.episode not in self._doubted:
            self._doubted[opened.episode] = now
            raise InDoubt
        await speaker.say(ended(opened, LOST))
        del self._doubted[opened.episode]
        return True

    def _begin_hosted(self, attempt: Attempt) -> bool:
        num_hosted = sum(isinstance(episode, HostedEpisode) for _, episode in self._running.values())
        hosting = self._around.hosting
        if self._is_leaving or hosting is None or num_hosted >= self._config.fleet.agents:
            return False
        self._begin(HostedEpisode(hosting, self._around, attempt))
        return True

    async def _begin_external(self, attempt: Attempt, delivery: Delivery, outlet: Outlet | None) -> bool:
        """Once somebody asks for it. Whoever asked for one that turns out to be over goes on waiting."""
        if attempt.opened.episode in self._running:
            return True
        asking = None if outlet is None else await outlet.claimed(attempt.opened.origin.task, delivery)
        if outlet is None or asking is None:
            return False
        is_ours = attempt.opened.episode not in self._running  # else it was delivered again, while it was at hand
        if not is_ours or self._is_leaving:
            outlet.ask(asking)
            return not is_ours
        self._begin(ExternalEpisode(self._around, attempt, asking), partial(outlet.ask, asking))
        return True

    def _begin(self, episode: Episode, afterwards: Callable[[], None] = lambda: None) -> None:
        name = episode.opened.episode
        task = asyncio.create_task(self._run(episode, afterwards), name=f"episode {name}")
        self._running[name] = (task, episode)
        self._tried.add(name)

    async def _run(self, episode: Episode, afterwards: Callable[[], None]) -> bool:
        opened = episode.opened
        try:
            is_over = await self._around.speaker.first(EpisodeEnded, opened.run, episode=opened.episode) is not None
            is_done = is_over or await episode.run()
            self._tried.discard(opened.episode)
            return is_done
        finally:
            del self._running[opened.episode]
            if isinstance(episode, ExternalEpisode):
                self._around.desk.file(episode)
            afterwards()
