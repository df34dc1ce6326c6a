"""An episode whose agent is a process of this runner: started, held within its limits, and gone at the end."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seamlessflow.bus.base import PROGRESS_SECONDS, Delivery
from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import EpisodeEnded, EpisodeOpened, EpisodeStarted, EpisodeStatus
from seamlessflow_agent_runner.external.episode_queue import Outlet
from seamlessflow_agent_runner.external.external_episode import ExternalEpisode
from seamlessflow_agent_runner.gateway.sessions import Session
from seamlessflow_agent_runner.processes.agent_process import AgentProcess, Ending, Limits
from seamlessflow_agent_runner.processes.forkserver_client import Nursery, Zygote
from seamlessflow_agent_runner.processes.memory_limit import MemoryWatch

from .agent_launch import BARE, MEGABYTE, Verdict, kind_of, launch_of, task_for_agent, verdict_of
from .deadline import overall_seconds
from .episode_attempt import LOST, Attempt, Episode, Surroundings, ended
from .pinned_version import Pinning
from .rewards import Judge


@dataclass(frozen=True, slots=True)
class Hosting:
    """What a runner needs to start agents itself."""

    nursery: Nursery
    memory: MemoryWatch
    folder: Path
    """Where agents' folders are made."""
    kill_grace_seconds: float
    base_url: str
    """Of the endpoint, as agents of this machine reach it."""


class HostedEpisode(Episode):
    """Runs the agent's process once."""

    def __init__(self, hosting: Hosting, around: Surroundings, attempt: Attempt) -> None:
        super().__init__(around, attempt)
        self._hosting = hosting
        self._process: AgentProcess | None = None

    def stop(self) -> None:
        super().stop()
        if self._process is not None:
            self._process.stop()

    async def _verdict(self, session: Session) -> Verdict:
        hosting = self._hosting
        home = Path(tempfile.mkdtemp(prefix=f"{self.opened.episode}-", dir=hosting.folder))
        try:
            async with self._stopped_when_ended():
                (home / "task.json").write_text(json.dumps(task_for_agent(self.opened)), encoding="utf-8")
                zygote = await hosting.nursery.zygote(kind_of(self._attempt.agent))
                fresh = self._attempt.agent.fresh
                if zygote.num_threads > 1:  # a fork would copy locks that other threads hold
                    zygote, fresh = await hosting.nursery.zygote(BARE), True
                return verdict_of(await self._run_process(zygote, home, session, fresh=fresh), self._attempt.agent)
        finally:
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)

    async def _run_process(self, zygote: Zygote, home: Path, session: Session, *, fresh: bool) -> Ending:
        agent = self._attempt.agent
        limits = Limits(
            deadline_seconds=agent.deadline_seconds,
            overall_seconds=overall_seconds(agent.deadline_seconds),
            memory_bytes=agent.memory_mb * MEGABYTE,
            output_bytes=agent.output_bytes,
            kill_grace_seconds=self._hosting.kill_grace_seconds,
        )
        self._process = AgentProcess(limits, self._hosting.memory, session.time)
        if self._is_stopped:
            self._process.stop()
        launch = launch_of(
            agent, self.opened, home=home, base_url=self._hosting.base_url, key=session.key, fresh=fresh
        )  # fmt: skip
        return await self._process.run(zygote, launch)


# The episodes that run here for one run: each once, however often it is delivered.


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
                await self._around.journal.publish(ended(opened, verdict))
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
        journal = self._around.journal
        if await journal.first(EpisodeEnded, opened.run, episode=opened.episode) is not None:
            return True
        started = await journal.first(EpisodeStarted, opened.run, episode=opened.episode)
        if started is None or opened.episode in self._tried:
            return False
        now = time.monotonic()
        self._doubted = {name: at for name, at in self._doubted.items() if now - at < DOUBT_COUNTS_SECONDS}
        if opened.episode not in self._doubted:
            self._doubted[opened.episode] = now
            raise InDoubt
        await journal.publish(ended(opened, LOST))
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
            is_over = await self._around.journal.first(EpisodeEnded, opened.run, episode=opened.episode) is not None
            is_done = is_over or await episode.run()
            self._tried.discard(opened.episode)
            return is_done
        finally:
            del self._running[opened.episode]
            if isinstance(episode, ExternalEpisode):
                self._around.desk.file(episode)
            afterwards()
