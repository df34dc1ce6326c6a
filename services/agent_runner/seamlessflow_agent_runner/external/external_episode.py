"""An episode whose agent runs elsewhere: handed out over HTTP, it ends with what its agent reports, or at its deadline."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import asdict, dataclass

from seamlessflow.contracts import EpisodeStatus
from seamlessflow_agent_runner.episodes.agent_launch import Verdict
from seamlessflow_agent_runner.episodes.deadline import UsedUp, overall_seconds, until
from seamlessflow_agent_runner.episodes.episode_attempt import Attempt, Episode, Surroundings
from seamlessflow_agent_runner.gateway.sessions import Session

from .episode_queue import Asking

REASON_CHARACTERS = 4000
_STOPPED = Verdict(EpisodeStatus.RUNNER_LOST, "the gateway stops or leaves the run")
_NOBODY = Verdict(EpisodeStatus.RUNNER_LOST, "the agent that asked for this episode was gone before it got it")


@dataclass(frozen=True, slots=True)
class Report:
    """How an external agent says its episode went; exactly one is set."""

    reward: float | None = None
    """Finite."""
    answer: str | None = None
    """For the verifier."""
    failed: str | None = None
    """Why it has neither."""

    @property
    def digest(self) -> str:
        """The same for the same report."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()

    @property
    def verdict(self) -> Verdict:
        if self.failed is not None:
            return Verdict(EpisodeStatus.AGENT_FAILED, self.failed[:REASON_CHARACTERS])
        return Verdict(EpisodeStatus.COMPLETED, answer=self.answer, reward=self.reward)


class ExternalEpisode(Episode):
    """One attempt, from when it is handed to whoever asked for it."""

    def __init__(self, around: Surroundings, attempt: Attempt, asking: Asking) -> None:
        super().__init__(around, attempt)
        self.agent = attempt.agent
        self.session: Session | None = None
        """None: it was not handed out."""
        self.over = asyncio.Event()
        """``end`` is known, or could not be said."""
        self._asking = asking
        loop = asyncio.get_running_loop()
        self._report: asyncio.Future[Report] = loop.create_future()
        self._halt: asyncio.Future[Verdict] = loop.create_future()

    @property
    def deadline_seconds(self) -> float:
        """Of the agent's own time."""
        return self.agent.deadline_seconds

    @property
    def report(self) -> Report | None:
        """The one that counts."""
        return self._report.result() if self._report.done() else None

    def take(self, report: Report) -> bool:
        """Whether this is the report that counts; the first one does, unless the episode is ending already."""
        if not self._report.done() and not self._halt.done() and self.end is None:
            self._report.set_result(report)
        return self.report == report

    def stop(self) -> None:
        super().stop()
        self._end_early(_STOPPED)

    def abandon(self) -> None:
        """Whoever asked for it never learned of it."""
        self._end_early(_NOBODY)

    async def run(self) -> bool:
        try:
            if self._asking.is_gone or self._halt.done():
                return False  # no attempt is lost to a client that left before anything was said
            return await super().run()
        finally:
            self.over.set()

    async def _verdict(self, session: Session) -> Verdict:
        if self._halt.done():
            return self._halt.result()
        if self._asking.is_gone:
            return _NOBODY
        self.session = session
        self._around.desk.hand_out(self)
        self._asking.handed.set_result(self)
        async with self._stopped_when_ended():
            overall = overall_seconds(self.deadline_seconds)
            used_up = await until(
                {self._report, self._halt}, session.time, own_seconds=self.deadline_seconds, overall_seconds=overall
            )
        if self._report.done():
            return self._report.result().verdict
        if used_up is not None:
            own = f"{self.deadline_seconds:g} s of the agent's own (deadline_seconds)"
            said = own if used_up is UsedUp.OWN else f"{overall:g} s, waiting for answers included"
            self._end_early(Verdict(EpisodeStatus.DEADLINE, f"nobody said how it went within {said}"))
        return self._halt.result()

    def _end_early(self, verdict: Verdict) -> None:
        if not self._halt.done():
            self._halt.set_result(verdict)
