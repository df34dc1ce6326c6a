"""The episodes that run here for one run: each once, however often it is delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from seamlessflow.bus.base import Delivery
from seamlessflow.contracts import EpisodeEnded, EpisodeOpened, EpisodeStatus
from seamlessflow.run_config import RunConfig

from .agents import Verdict
from .episodes import Attempt, Episode, Surroundings, ended
from .external import ExternalEpisode
from .hosted import HostedEpisode
from .outlet import Outlet
from .rewards import Judge


class Running:
    """Starts episodes and waits for their ends."""

    def __init__(self, around: Surroundings, config: RunConfig, judges: Mapping[str, Judge]) -> None:
        self._around, self._config, self._judges = around, config, judges
        self._running: dict[str, tuple[asyncio.Task[None], Episode]] = {}
        self._is_leaving = False

    def __len__(self) -> int:
        return len(self._running)

    def stop(self) -> None:
        """Start no more, and end all soon."""
        self._is_leaving = True
        for _, episode in self._running.values():
            episode.stop()

    async def is_done(self, opened: EpisodeOpened, delivery: Delivery, outlet: Outlet | None) -> bool:
        """Run it, or wait for it when it runs here already. False: somebody else should, we are leaving or full."""
        if opened.episode not in self._running:
            agent = self._config.agent(opened.env)
            if agent is None:
                verdict = Verdict(EpisodeStatus.NOT_STARTED, f"the run has no agent for environment tag {opened.env!r}")
                await self._around.speaker.say(ended(opened, verdict))
                return True
            attempt = Attempt(opened, agent, self._judges[opened.env], self._config.model.name)
            if not (await self._begin_external(attempt, delivery, outlet) if agent.external else self._begin_hosted(attempt)):
                return False
        if outlet is not None:
            outlet.settled(delivery)
        await asyncio.shield(self._running[opened.episode][0])
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

    async def _run(self, episode: Episode, afterwards: Callable[[], None]) -> None:
        opened = episode.opened
        try:
            if await self._around.speaker.first(EpisodeEnded, opened.run, episode=opened.episode) is None:
                await episode.run()
        finally:
            del self._running[opened.episode]
            if isinstance(episode, ExternalEpisode):
                self._around.desk.file(episode)
            afterwards()
