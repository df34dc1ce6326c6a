"""Local episodes, whose agent is a process of this runner; and all running episodes of a run, local and external.

An episode runs at most once here, however often it is delivered.
"""

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

from typing_extensions import override

from seamlessflow.bus.base import PROGRESS_SECONDS, Delivery
from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import EpisodeEnded, EpisodeOpened, EpisodeStarted, EpisodeStatus
from seamlessflow_agent_runner.external.episode_queue import EpisodeQueue
from seamlessflow_agent_runner.external.external_episode import ExternalEpisode
from seamlessflow_agent_runner.gateway.sessions import Session
from seamlessflow_agent_runner.processes.agent_process import AgentLimits, AgentProcess, ProcessEnd
from seamlessflow_agent_runner.processes.forkserver_client import ForkserverClient, ForkserverPool
from seamlessflow_agent_runner.processes.memory_limit import MemoryWatch

from .agent_launch import BARE, MEGABYTE, EpisodeOutcome, kind_of, launch_of, outcome_of, task_for_agent
from .deadline import overall_seconds
from .episode_attempt import LOST, EpisodeAttempt, LocalAgents, RunningEpisode, Surroundings, ended
from .pinned_version import Pinning
from .rewards import Judge


@dataclass(frozen=True, slots=True)
class AgentHosting:
    """See ``LocalAgents``."""

    forkservers: ForkserverPool
    memory: MemoryWatch
    folder: Path
    kill_grace_seconds: float
    base_url: str


class LocalEpisode(RunningEpisode):
    """An episode whose agent is a process of this runner: started, kept within its limits, and gone at the end."""

    def __init__(self, agents: LocalAgents, around: Surroundings, attempt: EpisodeAttempt) -> None:
        super().__init__(around, attempt)
        self._agents = agents
        self._process: AgentProcess | None = None

    @override
    def stop(self) -> None:
        super().stop()
        if self._process is not None:
            self._process.stop()

    @override
    async def _outcome(self, session: Session) -> EpisodeOutcome:
        agents = self._agents
        home = Path(tempfile.mkdtemp(prefix=f"{self.opened.episode}-", dir=agents.folder))
        try:
            async with self._stopped_when_ended():
                (home / "task.json").write_text(json.dumps(task_for_agent(self.opened)), encoding="utf-8")
                forkserver = await agents.forkservers.forkserver(kind_of(self._attempt.agent))
                fresh = self._attempt.agent.fresh
                if forkserver.num_threads > 1:  # a fork would copy locks that other threads hold
                    forkserver, fresh = await agents.forkservers.forkserver(BARE), True
                return outcome_of(await self._run_process(forkserver, home, session, fresh=fresh), self._attempt.agent)
        finally:
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)

    async def _run_process(self, forkserver: ForkserverClient, home: Path, session: Session, *, fresh: bool) -> ProcessEnd:
        agent = self._attempt.agent
        limits = AgentLimits(
            deadline_seconds=agent.deadline_seconds,
            overall_seconds=overall_seconds(agent.deadline_seconds),
            memory_bytes=agent.memory_mb * MEGABYTE,
            output_bytes=agent.output_bytes,
            kill_grace_seconds=self._agents.kill_grace_seconds,
        )
        self._process = AgentProcess(limits, self._agents.memory, session.time)
        if self._is_stopped:
            self._process.stop()
        launch = launch_of(
            agent, self.opened, home=home, base_url=self._agents.base_url, key=session.key, fresh=fresh
        )  # fmt: skip
        return await self._process.run(forkserver, launch)


DOUBT_SECONDS = 2.5 * PROGRESS_SECONDS
"""How long an episode that another gateway began is handed back for, once. After an outage of the server every unacknowledged
delivery goes to any consumer; a gateway that is alive pings within this time and so keeps its own."""
DOUBT_COUNTS_SECONDS = 60.0
"""An episode that is delivered again within this time is held by no gateway."""


class InDoubt(Exception):
    """Another gateway, which may be alive, began this episode."""


class RunningEpisodes:
    """The episodes of one run that run here: starts each once and waits for its end."""

    def __init__(
        self, around: Surroundings, config: RunConfig, judges: Mapping[str, Judge], pinning: Pinning | None = None
    ) -> None:
        self._around, self._config, self._judges, self._pinning = around, config, judges, pinning
        self._running: dict[str, tuple[asyncio.Task[bool], RunningEpisode]] = {}
        self._tried: set[str] = set()
        """Episodes that this process began, or may have begun: the journal became unavailable meanwhile."""
        self._doubted: dict[str, float] = {}
        """First delivery of episodes that other gateways began (monotonic seconds)."""
        self._is_leaving = False

    def __len__(self) -> int:
        return len(self._running)

    def stop(self) -> None:
        """Start no more episodes, and end the running ones soon."""
        self._is_leaving = True
        for _, episode in self._running.values():
            episode.stop()

    async def is_done(self, opened: EpisodeOpened, delivery: Delivery, queue: EpisodeQueue | None) -> bool:
        """Run a delivered episode, or wait for it when it runs here already. False: this runner is leaving or full.

        Raises InDoubt, Unavailable.
        """
        if opened.episode not in self._running:
            agent = self._config.agent(opened.env)
            if agent is None:
                outcome = EpisodeOutcome(EpisodeStatus.NOT_STARTED, f"the run has no agent for environment tag {opened.env!r}")
                await self._around.journal.publish(ended(opened, outcome))
                return True
            attempt = EpisodeAttempt(opened, agent, self._judges[opened.env], self._config.model.name, self._pinning)
            if agent.external and queue is not None and await self._is_over(opened):
                queue.found_lost()
                return True
            if not (await self._begin_external(attempt, delivery, queue) if agent.external else self._begin_local(attempt)):
                return False
        if queue is not None:
            queue.settled(delivery)
        return await asyncio.shield(self._running[opened.episode][0])

    async def _is_over(self, opened: EpisodeOpened) -> bool:
        """Whether the episode must not start: it has ended, or a gateway that was killed began it.

        In the second case its end is published now. Raises InDoubt.
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

    def _begin_local(self, attempt: EpisodeAttempt) -> bool:
        num_local = sum(isinstance(episode, LocalEpisode) for _, episode in self._running.values())
        agents = self._around.local
        if self._is_leaving or agents is None or num_local >= self._config.fleet.agents:
            return False
        self._begin(LocalEpisode(agents, self._around, attempt))
        return True

    async def _begin_external(self, attempt: EpisodeAttempt, delivery: Delivery, queue: EpisodeQueue | None) -> bool:
        """Begin once a client asks for it. A client whose episode turns out to be over goes on waiting."""
        if attempt.opened.episode in self._running:
            return True
        client = None if queue is None else await queue.claimed(attempt.opened.origin.task, delivery)
        if queue is None or client is None:
            return False
        is_ours = attempt.opened.episode not in self._running  # else it was delivered again, while it was at hand
        if not is_ours or self._is_leaving:
            queue.ask(client)
            return not is_ours
        self._begin(ExternalEpisode(self._around, attempt, client), partial(queue.ask, client))
        return True

    def _begin(self, episode: RunningEpisode, afterwards: Callable[[], None] = lambda: None) -> None:
        name = episode.opened.episode
        task = asyncio.create_task(self._run(episode, afterwards), name=f"episode {name}")
        self._running[name] = (task, episode)
        self._tried.add(name)

    async def _run(self, episode: RunningEpisode, afterwards: Callable[[], None]) -> bool:
        opened = episode.opened
        try:
            is_over = await self._around.journal.first(EpisodeEnded, opened.run, episode=opened.episode) is not None
            is_done = is_over or await episode.run()
            self._tried.discard(opened.episode)
            return is_done
        finally:
            del self._running[opened.episode]
            if isinstance(episode, ExternalEpisode):
                self._around.external.file(episode)
            afterwards()
