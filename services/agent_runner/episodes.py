"""One attempt of an episode, from EpisodeOpened to EpisodeEnded.

opened ─▶ ended already? ─▶ skip
       ─▶ say EpisodeStarted ─ refused ─▶ RUNNER_LOST (an earlier runner died, and its agent with it)
       ─▶ run the agent ─ failed ─▶ its status and reason
       ─▶ judge its answer ─ failed ─▶ VERIFIER_FAILED
       ─▶ COMPLETED with a reward
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from seamlessflow.contracts import EpisodeEnded, EpisodeOpened, EpisodeStarted, EpisodeStatus
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.run_config import AgentSection
from seamlessflow.runtime import Speaker

from .agents import BARE, MEGABYTE, Verdict, kind_of, launch_of, task_for_agent, task_of, verdict_of
from .gateway.server import Gateway
from .gateway.sessions import Session, Sessions
from .launch import NotStarted
from .memory import MemoryWatch
from .nursery import Nursery
from .own_time import overall_seconds
from .process import AgentProcess, Ending, Limits
from .rewards import Judge, VerifierFailed
from .zygote_link import Zygote

log = structlog.get_logger()

ENDED_LOOK_SECONDS = 5.0
"""How often a running episode looks whether the scheduler has ended it."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all episodes of a runner share."""

    speaker: Speaker
    sessions: Sessions
    gateway: Gateway
    nursery: Nursery
    memory: MemoryWatch
    folder: Path
    """Where agents' folders are made."""
    runner: str
    """This process's instance name."""
    kill_grace_seconds: float


class Episode:
    """Runs one attempt once."""

    def __init__(self, around: Surroundings, opened: EpisodeOpened, agent: AgentSection, judge: Judge, model: str) -> None:
        self._around, self._opened, self._agent, self._judge, self._model = around, opened, agent, judge, model
        self._process: AgentProcess | None = None
        self._is_stopped = False
        self._was_ended_elsewhere = False

    def stop(self) -> None:
        """The runner leaves: end the agent soon."""
        self._is_stopped = True
        if self._process is not None:
            self._process.stop()

    async def run(self) -> None:
        """From start to EpisodeEnded said. Raises nothing but a closed bus."""
        began = time.monotonic()
        said = await self._around.speaker.say(
            EpisodeStarted(run=self._opened.run, episode=self._opened.episode, runner=self._around.runner)
        )
        if said is None:
            await self._say_ended(Verdict(EpisodeStatus.RUNNER_LOST, "an earlier agent-runner died while it ran this episode"))
            return
        session = self._around.sessions.open(self._opened, self._model)
        try:
            verdict, reward = await self._judged(session)
        finally:
            undelivered = self._around.sessions.close(session)
        seconds = time.monotonic() - began
        if not self._was_ended_elsewhere:
            await self._say_ended(verdict, reward, num_calls=len(session.calls), undelivered=undelivered, wall_seconds=seconds)
        log.info(
            "episode.ended", run=self._opened.run, episode=self._opened.episode, status=verdict.status.value, reward=reward,
            reason=verdict.reason[:500], num_calls=len(session.calls), wall_seconds=round(seconds, 3),
        )  # fmt: skip

    async def _judged(self, session: Session) -> tuple[Verdict, float | None]:
        try:
            verdict = await self._run_agent(session)
            if verdict.answer is None:
                return verdict, None
            return verdict, await self._judge.reward(verdict.answer, task_of(self._opened))
        except NotStarted as wrong:
            return Verdict(EpisodeStatus.NOT_STARTED, str(wrong)), None
        except VerifierFailed as wrong:
            return Verdict(EpisodeStatus.VERIFIER_FAILED, str(wrong)), None
        except Exception as wrong:
            log.exception("episode.failed", episode=self._opened.episode)
            return Verdict(EpisodeStatus.RUNNER_LOST, f"the agent-runner failed: {type(wrong).__name__}: {wrong}"), None

    async def _run_agent(self, session: Session) -> Verdict:
        home = Path(tempfile.mkdtemp(prefix=f"{self._opened.episode}-", dir=self._around.folder))
        watch = asyncio.create_task(self._watch_for_end())
        try:
            (home / "task.json").write_text(json.dumps(task_for_agent(self._opened)), encoding="utf-8")
            zygote = await self._around.nursery.zygote(kind_of(self._agent))
            fresh = self._agent.fresh
            if zygote.num_threads > 1:  # a fork would copy locks that other threads hold
                zygote, fresh = await self._around.nursery.zygote(BARE), True
            return verdict_of(await self._run_process(zygote, home, session, fresh=fresh), self._agent)
        finally:
            watch.cancel()
            await asyncio.to_thread(shutil.rmtree, home, ignore_errors=True)

    async def _run_process(self, zygote: Zygote, home: Path, session: Session, *, fresh: bool) -> Ending:
        agent = self._agent
        limits = Limits(
            deadline_seconds=agent.deadline_seconds,
            overall_seconds=overall_seconds(agent.deadline_seconds),
            memory_bytes=agent.memory_mb * MEGABYTE,
            output_bytes=agent.output_bytes,
            kill_grace_seconds=self._around.kill_grace_seconds,
        )
        self._process = AgentProcess(limits, self._around.memory, session.time)
        if self._is_stopped:
            self._process.stop()
        base_url = self._around.gateway.base_url
        launch = launch_of(agent, self._opened, home=home, base_url=base_url, key=session.key, fresh=fresh)
        return await self._process.run(zygote, launch)

    async def _watch_for_end(self) -> None:
        """The scheduler may end the episode (run over): its agent is then of no use."""
        while True:
            await asyncio.sleep(ENDED_LOOK_SECONDS)
            with suppress(SeamlessFlowError):
                if await self._around.speaker.first(EpisodeEnded, self._opened.run, episode=self._opened.episode) is not None:
                    self._was_ended_elsewhere = True
                    self.stop()
                    return

    async def _say_ended(
        self,
        verdict: Verdict,
        reward: float | None = None,
        *,
        num_calls: int = 0,
        undelivered: tuple[str, ...] = (),
        wall_seconds: float = 0.0,
    ) -> None:
        await self._around.speaker.say(ended(self._opened, verdict, reward, num_calls, undelivered, wall_seconds))


def ended(
    opened: EpisodeOpened,
    verdict: Verdict,
    reward: float | None = None,
    num_calls: int = 0,
    undelivered: tuple[str, ...] = (),
    wall_seconds: float = 0.0,
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
    )
