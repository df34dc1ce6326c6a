"""One attempt of an episode, from EpisodeStarted to EpisodeEnded, whoever runs the agent.

say EpisodeStarted ─ refused ─▶ RUNNER_LOST (an earlier runner died, and its agent or its session with it)
       ─▶ the agent (``hosted``: a process of ours; ``external``: elsewhere) ─ failed ─▶ its status and reason
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
from typing import TYPE_CHECKING

import structlog

from seamlessflow.config.sampling_sections import AgentSection
from seamlessflow.contracts import EpisodeEnded, EpisodeOpened, EpisodeStarted, EpisodeStatus
from seamlessflow.errors import BusClosed, SeamlessFlowError, Unavailable
from seamlessflow.runtime import Journal
from seamlessflow_agent_runner.gateway.sessions import Session, Sessions
from seamlessflow_agent_runner.processes.forkserver_client import NotStarted

from .agent_launch import Verdict, task_of
from .pinned_version import Pin, Pinning
from .rewards import Judge, VerifierFailed

if TYPE_CHECKING:
    from seamlessflow_agent_runner.external.episode_api import EpisodeDesk

    from .local_episode import Hosting

log = structlog.get_logger()

ENDED_LOOK_SECONDS = 5.0
"""How often a running episode looks whether the scheduler has ended it."""
SAY_AGAIN_SECONDS = 1.0
LOST = Verdict(EpisodeStatus.RUNNER_LOST, "an earlier agent-runner died while it ran this episode")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all episodes of a runner share."""

    journal: Journal
    sessions: Sessions
    runner: str
    """This process's instance name."""
    desk: EpisodeDesk
    """Where agents that run elsewhere come to."""
    hosting: Hosting | None
    """None: it starts no agents, and serves only those that run elsewhere."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is to be done, by which kind of agent."""

    opened: EpisodeOpened
    agent: AgentSection
    judge: Judge
    model: str
    """Name shown to the agent."""
    pinning: Pinning | None = None
    """None: its run's episodes keep no weights version."""


class Episode(ABC):
    """Runs one attempt once."""

    def __init__(self, around: Surroundings, attempt: Attempt) -> None:
        self.end: EpisodeEnded | None = None
        """What the journal says, once it says it."""
        self.has_our_end = False
        """Whether that is what this attempt came to here, and not what somebody else said before."""
        self._around, self._attempt = around, attempt
        self._is_stopped = False

    @property
    def opened(self) -> EpisodeOpened:
        return self._attempt.opened

    def stop(self) -> None:
        """The runner leaves, or the scheduler ended it: the agent is to end soon."""
        self._is_stopped = True

    @abstractmethod
    async def _verdict(self, session: Session) -> Verdict:
        """How it went. Raises NotStarted."""

    async def run(self) -> bool:
        """From start to EpisodeEnded said. False: it was not begun, and somebody else may. Raises Unavailable."""
        began = time.monotonic()
        opened = self.opened
        said = await self._around.journal.publish(
            EpisodeStarted(run=opened.run, episode=opened.episode, runner=self._around.runner)
        )
        if said is None:
            await self._publish(ended(opened, LOST))
            return True
        pinning = self._attempt.pinning
        session = self._around.sessions.open(opened, self._attempt.model, None if pinning is None else Pin(pinning))
        try:
            verdict, reward = await self._judged(session)
        finally:
            undelivered = self._around.sessions.close(session)
        seconds = time.monotonic() - began
        sampled_tokens = session.sampled_tokens
        await self._publish(ended(opened, verdict, reward, len(session.calls), undelivered, seconds, sampled_tokens))
        log.info(
            "episode.ended", run=opened.run, episode=opened.episode, status=verdict.status.value, reward=reward,
            reason=verdict.reason[:500], num_calls=len(session.calls), wall_seconds=round(seconds, 3),
        )  # fmt: skip
        return True

    async def _judged(self, session: Session) -> tuple[Verdict, float | None]:
        try:
            verdict = await self._verdict(session)
            if verdict.answer is None:
                return verdict, verdict.reward
            return verdict, await self._attempt.judge.reward(verdict.answer, task_of(self.opened))
        except NotStarted as wrong:
            return Verdict(EpisodeStatus.NOT_STARTED, str(wrong)), None
        except VerifierFailed as wrong:
            return Verdict(EpisodeStatus.VERIFIER_FAILED, str(wrong)), None
        except Exception as wrong:
            log.exception("episode.failed", episode=self.opened.episode)
            return Verdict(EpisodeStatus.RUNNER_LOST, f"the agent-runner failed: {type(wrong).__name__}: {wrong}"), None

    @asynccontextmanager
    async def _stopped_when_ended(self) -> AsyncIterator[None]:
        """Inside, ``stop`` is called when the scheduler has ended the episode (run over): its agent is then of no use."""
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
        """Unless somebody did before: it may be said once. Nobody else knows a reward, so it is kept for as long as the
        journal is away, unless the runner leaves."""
        while self.end is None:
            try:
                stored = await self._around.journal.publish(event)
                is_new = stored is not None and not stored.duplicate  # whoever says it, it has the same id
                self.end = event if is_new else await self._stored_end() or event
            except Unavailable as wrong:
                if self._is_stopped or isinstance(wrong, BusClosed):
                    raise
                log.warning("episode.end_delayed", run=event.run, episode=event.episode, reason=str(wrong))
                await asyncio.sleep(SAY_AGAIN_SECONDS)
        self.has_our_end = self.end == event

    async def _stored_end(self) -> EpisodeEnded | None:
        return await self._around.journal.first(EpisodeEnded, self.opened.run, episode=self.opened.episode)


def ended(
    opened: EpisodeOpened,
    verdict: Verdict,
    reward: float | None = None,
    num_calls: int = 0,
    undelivered: tuple[str, ...] = (),
    wall_seconds: float = 0.0,
    sampled_tokens: int | None = None,
) -> EpisodeEnded:
    """The fact that an attempt is over."""
    return EpisodeEnded(
        run=opened.run,
        episode=opened.episode,
        shard=opened.shard,
        origin=opened.origin,
        status=verdict.status,
        reason=verdict.reason,
        reward=reward,
        num_calls=num_calls,
        undelivered=undelivered,
        wall_seconds=wall_seconds,
        sampled_tokens=sampled_tokens,
    )
