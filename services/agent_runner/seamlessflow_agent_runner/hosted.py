"""An episode whose agent is a process of this runner: started, held within its limits, and gone at the end."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .agents import BARE, MEGABYTE, Verdict, kind_of, launch_of, task_for_agent, verdict_of
from .episodes import Attempt, Episode, Surroundings
from .gateway.sessions import Session
from .memory import MemoryWatch
from .nursery import Nursery
from .own_time import overall_seconds
from .process import AgentProcess, Ending, Limits
from .zygote_link import Zygote


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
