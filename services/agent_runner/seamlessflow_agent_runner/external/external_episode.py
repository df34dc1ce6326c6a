"""An episode whose agent runs elsewhere: handed out over HTTP, it ends with its agent's report, or at its deadline."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Protocol

from typing_extensions import override

from seamlessflow.contracts import EpisodeStatus
from seamlessflow_agent_runner.episodes.agent_launch import EpisodeOutcome
from seamlessflow_agent_runner.episodes.deadline import UsedUp, overall_seconds, until
from seamlessflow_agent_runner.episodes.episode_attempt import EpisodeAttempt, RunningEpisode, Surroundings
from seamlessflow_agent_runner.gateway.sessions import Session

REASON_CHARACTERS = 4000
_STOPPED = EpisodeOutcome(EpisodeStatus.RUNNER_LOST, "the gateway stops or leaves the run")
_CLIENT_GONE = EpisodeOutcome(EpisodeStatus.RUNNER_LOST, "the agent that asked for this episode was gone before it got it")


@dataclass(frozen=True, slots=True)
class Report:
    """An external agent's report on its episode; exactly one field is set."""

    reward: float | None = None
    """Finite."""
    answer: str | None = None
    """For the verifier to judge."""
    failed: str | None = None
    """The reason why there is neither reward nor answer."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex), to recognise a repeated report."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()

    @property
    def outcome(self) -> EpisodeOutcome:
        """Status, reason and reward of an episode with this report."""
        if self.failed is not None:
            return EpisodeOutcome(EpisodeStatus.AGENT_FAILED, self.failed[:REASON_CHARACTERS])
        return EpisodeOutcome(EpisodeStatus.COMPLETED, answer=self.answer, reward=self.reward)


class EpisodeRecipient(Protocol):
    """The client that an episode is started for; see ``episode_queue.WaitingClient``."""

    handed: asyncio.Future[ExternalEpisode | None]
    is_gone: bool


class ExternalEpisode(RunningEpisode):
    """An episode whose agent runs elsewhere, from its hand-over to its end."""

    def __init__(self, around: Surroundings, attempt: EpisodeAttempt, client: EpisodeRecipient) -> None:
        super().__init__(around, attempt)
        self.agent = attempt.agent
        self.session: Session | None = None
        """None: the episode was not handed out."""
        self.over = asyncio.Event()
        """Set once ``end`` is known, or could not be published."""
        self._client = client
        loop = asyncio.get_running_loop()
        self._report: asyncio.Future[Report] = loop.create_future()
        self._halt: asyncio.Future[EpisodeOutcome] = loop.create_future()

    @property
    def deadline_seconds(self) -> float:
        """Limit of the agent's own time."""
        return self.agent.deadline_seconds

    @property
    def report(self) -> Report | None:
        """The report that decides the end. None: there is none yet."""
        return self._report.result() if self._report.done() else None

    def take(self, report: Report) -> bool:
        """Whether this report decides the end: the first one does, unless the episode is ending already."""
        if not self._report.done() and not self._halt.done() and self.end is None:
            self._report.set_result(report)
        return self.report == report

    @override
    def stop(self) -> None:
        super().stop()
        self._end_early(_STOPPED)

    def abandon(self) -> None:
        """End an episode whose client never received it."""
        self._end_early(_CLIENT_GONE)

    @override
    async def run(self) -> bool:
        try:
            if self._client.is_gone or self._halt.done():
                return False  # the client left before anything was published: no attempt is used up
            return await super().run()
        finally:
            self.over.set()

    @override
    async def _outcome(self, session: Session) -> EpisodeOutcome:
        if self._halt.done():
            return self._halt.result()
        if self._client.is_gone:
            return _CLIENT_GONE
        self.session = session
        self._around.external.hand_out(self)
        self._client.handed.set_result(self)
        async with self._stopped_when_ended():
            overall = overall_seconds(self.deadline_seconds)
            used_up = await until(
                {self._report, self._halt}, session.time, own_seconds=self.deadline_seconds, overall_seconds=overall
            )
        if self._report.done():
            return self._report.result().outcome
        if used_up is not None:
            own = f"{self.deadline_seconds:g} s of the agent's own (deadline_seconds)"
            limit = own if used_up is UsedUp.OWN else f"{overall:g} s, waiting for answers included"
            self._end_early(EpisodeOutcome(EpisodeStatus.DEADLINE, f"no report came within {limit}"))
        return self._halt.result()

    def _end_early(self, outcome: EpisodeOutcome) -> None:
        if not self._halt.done():
            self._halt.set_result(outcome)
