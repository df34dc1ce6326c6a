"""One attempt of an episode, from EpisodeStarted to EpisodeEnded, for local and for external agents.

publish EpisodeStarted ─ refused ─▶ RUNNER_LOST (an earlier runner died, and its agent or its session with it)
       ─▶ run the agent (``local_episode``: a process of this runner; ``external_episode``: elsewhere)
                        ─ failed ─▶ its status and reason
       ─▶ judge its answer ─ failed ─▶ VERIFIER_FAILED
       ─▶ COMPLETED with a reward
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from seamlessflow.config.sampling_sections import AgentSection
from seamlessflow.contracts import EpisodeEnded, EpisodeOpened, EpisodeStarted, EpisodeStatus
from seamlessflow.errors import BusClosed, SeamlessFlowError, Unavailable
from seamlessflow.runtime import Journal
from seamlessflow_agent_runner.gateway.sessions import Session, Sessions
from seamlessflow_agent_runner.processes.forkserver_client import ForkserverPool, NotStarted
from seamlessflow_agent_runner.processes.memory_limit import MemoryWatch

from .agent_launch import EpisodeOutcome, task_of
from .pinned_version import Pin, Pinning
from .rewards import Judge, VerifierFailed

log = structlog.get_logger()

ENDED_LOOK_SECONDS = 5.0
"""How often a running episode looks in the journal whether the scheduler has ended it."""
PUBLISH_RETRY_SECONDS = 1.0
"""Pause before EpisodeEnded is published again while the journal is unavailable."""
LOST = EpisodeOutcome(EpisodeStatus.RUNNER_LOST, "an earlier agent-runner died while it ran this episode")


class ExternalEpisodes(Protocol):
    """The register of episodes whose agents run elsewhere; requests about them find them there."""

    def hand_out(self, episode: RunningEpisode) -> None:
        """Accept reports on a started episode from now on."""
        ...

    def file(self, episode: RunningEpisode) -> None:
        """Move an episode that is over to the ended ones: its calls are forgotten, its end is kept."""
        ...


class LocalAgents(Protocol):
    """Everything needed to start agents as processes of this runner."""

    @property
    def forkservers(self) -> ForkserverPool:
        """The interpreters that agents are forked from."""
        ...

    @property
    def memory(self) -> MemoryWatch:
        """Stops agents that use more memory than allowed."""
        ...

    @property
    def folder(self) -> Path:
        """Parent of the agents' home folders."""
        ...

    @property
    def kill_grace_seconds(self) -> float:
        """Time between SIGTERM and SIGKILL at the deadline."""
        ...

    @property
    def base_url(self) -> str:
        """The gateway's address as local agents reach it."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of a runner that all of its episodes share."""

    journal: Journal
    sessions: Sessions
    runner: str
    """This process's instance name."""
    external: ExternalEpisodes
    """The register of episodes whose agents run elsewhere."""
    local: LocalAgents | None
    """None: this runner starts no agents and serves only external ones."""


@dataclass(frozen=True, slots=True)
class EpisodeAttempt:
    """One delivered episode with the agent and the judge that are configured for it."""

    opened: EpisodeOpened
    agent: AgentSection
    judge: Judge
    model: str
    """Name shown to the agent."""
    pinning: Pinning | None = None
    """None: episodes of its run pin no weights version."""


class RunningEpisode(ABC):
    """Runs one attempt once; a subclass for each place where agents run."""

    def __init__(self, around: Surroundings, attempt: EpisodeAttempt) -> None:
        self.end: EpisodeEnded | None = None
        """The end that stands in the journal. None: there is none yet."""
        self.has_our_end = False
        """Whether ``end`` is the result of this attempt, and not one that another process published before."""
        self._around, self._attempt = around, attempt
        self._is_stopped = False

    @property
    def opened(self) -> EpisodeOpened:
        """The event that opened the episode."""
        return self._attempt.opened

    def stop(self) -> None:
        """End the agent soon: the runner leaves the run, or the scheduler ended the episode."""
        self._is_stopped = True

    @abstractmethod
    async def _outcome(self, session: Session) -> EpisodeOutcome:
        """Run the agent to its end. Raises NotStarted."""

    async def run(self) -> bool:
        """Run until EpisodeEnded is published. False: it was not begun, and another runner may. Raises Unavailable."""
        began = time.monotonic()
        opened = self.opened
        stored = await self._around.journal.publish(
            EpisodeStarted(run=opened.run, episode=opened.episode, runner=self._around.runner)
        )
        if stored is None:
            await self._publish(ended(opened, LOST))
            return True
        pinning = self._attempt.pinning
        session = self._around.sessions.open(opened, self._attempt.model, None if pinning is None else Pin(pinning))
        try:
            outcome, reward = await self._judged(session)
        finally:
            undelivered = self._around.sessions.close(session)
        seconds = time.monotonic() - began
        sampled_tokens = session.sampled_tokens
        await self._publish(ended(opened, outcome, reward, len(session.calls), undelivered, seconds, sampled_tokens))
        log.info(
            "episode.ended", run=opened.run, episode=opened.episode, status=outcome.status.value, reward=reward,
            reason=outcome.reason[:500], num_calls=len(session.calls), wall_seconds=round(seconds, 3),
        )  # fmt: skip
        return True

    async def _judged(self, session: Session) -> tuple[EpisodeOutcome, float | None]:
        try:
            outcome = await self._outcome(session)
            if outcome.answer is None:
                return outcome, outcome.reward
            return outcome, await self._attempt.judge.reward(outcome.answer, task_of(self.opened))
        except NotStarted as wrong:
            return EpisodeOutcome(EpisodeStatus.NOT_STARTED, str(wrong)), None
        except VerifierFailed as wrong:
            return EpisodeOutcome(EpisodeStatus.VERIFIER_FAILED, str(wrong)), None
        except Exception as wrong:
            log.exception("episode.failed", episode=self.opened.episode)
            return EpisodeOutcome(EpisodeStatus.RUNNER_LOST, f"the agent-runner failed: {type(wrong).__name__}: {wrong}"), None

    @asynccontextmanager
    async def _stopped_when_ended(self) -> AsyncIterator[None]:
        """Inside, ``stop`` is called once the scheduler has ended the episode, as at the end of its run."""
        watch = asyncio.create_task(self._watch_for_end())
        try:
            yield
        finally:
            watch.cancel()

    async def _watch_for_end(self) -> None:
        while self.end is None:
            await asyncio.sleep(ENDED_LOOK_SECONDS)
            with suppress(SeamlessFlowError):
                self.end = await self._stored_end()
        self.stop()

    async def _publish(self, event: EpisodeEnded) -> None:
        """Publish the end, unless another process did before: an episode has one end.

        Only this process knows the reward, so it retries for as long as the journal is unavailable, unless the runner leaves.
        """
        while self.end is None:
            try:
                stored = await self._around.journal.publish(event)
                is_new = stored is not None and not stored.duplicate  # all ends of an episode have the same id
                self.end = event if is_new else await self._stored_end() or event
            except Unavailable as wrong:
                if self._is_stopped or isinstance(wrong, BusClosed):
                    raise
                log.warning("episode.end_delayed", run=event.run, episode=event.episode, reason=str(wrong))
                await asyncio.sleep(PUBLISH_RETRY_SECONDS)
        self.has_our_end = self.end == event

    async def _stored_end(self) -> EpisodeEnded | None:
        return await self._around.journal.first(EpisodeEnded, self.opened.run, episode=self.opened.episode)


def ended(
    opened: EpisodeOpened,
    outcome: EpisodeOutcome,
    reward: float | None = None,
    num_calls: int = 0,
    undelivered: tuple[str, ...] = (),
    wall_seconds: float = 0.0,
    sampled_tokens: int | None = None,
) -> EpisodeEnded:
    """The EpisodeEnded of an attempt."""
    return EpisodeEnded(
        run=opened.run,
        episode=opened.episode,
        shard=opened.shard,
        origin=opened.origin,
        status=outcome.status,
        reason=outcome.reason,
        reward=reward,
        num_calls=num_calls,
        undelivered=undelivered,
        wall_seconds=wall_seconds,
        sampled_tokens=sampled_tokens,
    )
