"""The claim on a run's commits: once it is appended, no earlier claim can commit, drop a group or end the run.

    claim ─▶ read what was committed ─▶ append, append, … ─▶ refused: another claim is newer, everything stops here

The claim's own sequence is the fence; after a commit it is the commit's. A refusal alone proves nothing, since our own append
may be stored and its acknowledgement lost: the id of the newest message on the subject names the owner of the run.

A server that loses the end of its journal (power loss) assigns a sequence twice, and two claims may then have the same one.
So each append is confirmed: from the fence before it to a commit, all messages on the subject must be ours; after any other
append its newest message must be ours.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

import structlog

from seamlessflow.bus.base import Bus, Record
from seamlessflow.contracts import (
    Event,
    GroupTrained,
    ResumeRequested,
    RolledBack,
    RunEnded,
    RunHeld,
    StepsCommitted,
    TrainedGroup,
    TrainerClaimed,
    TrainerStarted,
    TrainingEnded,
)
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import claim_of_commit, kind_of_id, subject_filters, subject_of
from seamlessflow.errors import BadInput, MalformedMessage, SequenceMismatch, Superseded
from seamlessflow.runtime.journal import Journal

from .commit_history import CommitHistory

log = structlog.get_logger()

CLAIM_PAUSE_SECONDS = 0.05
"""Pause before a refused append is tried again."""
HISTORY_EVENTS = (StepsCommitted, TrainingEnded, RunEnded, RunHeld, ResumeRequested)
"""Their subjects hold every event of a history."""
CommitSubjectEvent = TrainerClaimed | StepsCommitted | RolledBack
"""Events on the subject of commits. The newest one names the owner of the run."""


@dataclass(frozen=True, slots=True)
class _Owner:
    """The owner of the run, by the newest message on the subject of commits."""

    seq: int
    line: int
    nonce: str
    closing: str = ""
    """The scheduler that closes the run; empty: it is not being closed."""


class CommitClaim:
    """One process's claim on one run. ``by``: the claimant, in messages. Not valid before ``take``."""

    def __init__(self, bus: Bus, journal: Journal, run: str, by: str) -> None:
        self._bus, self._journal, self._run, self._by = bus, journal, run, by
        self._subject = subject_of(TrainerClaimed(run=run, line=0, nonce="any", by=by))
        self._seq = 0
        self._lock = asyncio.Lock()
        self.lost = asyncio.Event()
        """Set once a newer claim was seen; only another ``take`` clears it."""
        self._loss, self._is_closing = "", False
        """The message of its loss, and whether it was lost to a scheduler that closes the run."""
        self.nonce = ""
        self.line = 0

    @property
    def is_held(self) -> bool:
        """Whether it was taken and is not known to be lost."""
        return bool(self.nonce) and not self.lost.is_set()

    async def take(self, *, closes: bool = False) -> None:
        """Become the newest claim of the run. ``closes``: for a scheduler that ends the run for good.

        Raises Superseded where a scheduler closes the run and ``closes`` is not set; that scheduler publishes the rest.
        """
        while True:
            owner = await self._owner()
            if owner.closing and not closes:
                why = f"run {self._run} is being closed by {owner.closing}; nothing is trained any more"
                raise Superseded(why, is_closing=True)
            started = await self._journal.last(TrainerStarted, self._run)
            line = 1 + max(owner.line, 0 if started is None else started.line)
            claim = TrainerClaimed(run=self._run, line=line, nonce=uuid.uuid4().hex[:16], by=self._by, closes=closes)
            try:
                seq = await self._journal.append(claim, owner.seq)
            except SequenceMismatch as wrong:
                log.info("claim.refused", run=self._run, line=line, reason=str(wrong))
                await asyncio.sleep(CLAIM_PAUSE_SECONDS)
                continue
            self._seq, self.nonce, self.line = seq, claim.nonce, line
            self.lost.clear()
            log.info("claim.taken", run=self._run, line=line, nonce=claim.nonce, closes=closes)
            return

    async def append(self, event: Event) -> None:
        """Store an event that only the newest claim may publish, as its ``nonce`` says.

        Raises Superseded: our claim is not the newest. The event may be stored all the same, and counts only if the claim was
        the newest then; so nothing may be acknowledged for it.
        """
        async with self._lock:  # a commit moves the fence
            while True:
                self._require_not_lost()
                before = self._seq
                try:
                    seq = await self._journal.append(event, before)
                    break
                except SequenceMismatch as wrong:
                    await self._check(str(wrong))  # no error: our own commit moved the fence, so append again
                    await asyncio.sleep(CLAIM_PAUSE_SECONDS)
            if isinstance(event, CommitSubjectEvent):
                self._seq = seq
                await self._confirm(before)
            else:
                await self._check("seen after an append")

    async def check(self) -> None:
        """Raises Superseded where another claim is newer."""
        async with self._lock:
            self._require_not_lost()
            await self._check("seen by a look at the newest claim")

    async def num_recent_claims(self, seconds: float) -> int:
        """Number of the run's claims in so many seconds before its newest one, by the server's clock; the newest included."""
        times = [
            record.time
            async for record in self._bus.read(journal_stream(self._run), filters=(self._subject,))
            if kind_of_id(record.message_id) is TrainerClaimed
        ]
        return sum(time > times[-1] - seconds for time in times)

    def _require_not_lost(self) -> None:
        if self.lost.is_set():
            raise Superseded(self._loss, is_closing=self._is_closing)

    async def _check(self, why: str) -> None:
        owner = await self._owner()
        if owner.nonce != self.nonce:
            self._lose(owner, why)
        self._seq = owner.seq

    async def _confirm(self, before: int) -> None:
        """Raises Superseded where another claim's message is on the subject since the fence before."""
        async for record in self._bus.read(journal_stream(self._run), filters=(self._subject,), start_seq=max(1, before)):
            if record.seq > self._seq or kind_of_id(record.message_id) is None:
                continue
            line, nonce = claim_of_commit(record.message_id)
            if nonce != self.nonce:
                owner = _Owner(record.seq, line, nonce)
                self._lose(owner, "the server lost the end of its journal, and gave our sequence to another claim")

    def _lose(self, owner: _Owner, why: str) -> NoReturn:
        self.lost.set()
        rival = f"that of line {owner.line}" if owner.nonce else "none at all"
        self._loss = (
            f"the claim of line {self.line} on run {self._run} is not the newest, which is {rival} ({why}); its uncommitted "
            "work is lost, and held samples are handed back"
        )
        self._is_closing = bool(owner.closing)
        raise Superseded(self._loss, is_closing=self._is_closing)

    async def _owner(self) -> _Owner:
        """The run's current owner. Only the payload of a claim is read."""
        record = await self._bus.last(journal_stream(self._run), self._subject)
        if record is None:
            return _Owner(0, 0, "")
        if kind_of_id(record.message_id) is None:  # not published by a service: it has the sequence, and owns nothing
            return _Owner(record.seq, 0, "")
        line, nonce = claim_of_commit(record.message_id)
        return _Owner(record.seq, line, nonce, await self._closing(record))

    async def _closing(self, record: Record) -> str:
        if kind_of_id(record.message_id) is not TrainerClaimed:
            return ""
        claim = await self._journal.open(record)
        return claim.by if isinstance(claim, TrainerClaimed) and claim.closes else ""


async def read_commits(bus: Bus, journal: Journal, run: str, *, with_groups: bool = False) -> CommitHistory:
    """The journal's claims and commits now. Read after a claim was taken, no earlier claim can add to it.

    with_groups: read closings of groups as well (``CommitHistory.closed``), of which there are many.
    Raises MalformedMessage where one cannot be read: leaving it out would bring an older checkpoint back.
    """
    history, kinds = CommitHistory(), (*HISTORY_EVENTS, GroupTrained) if with_groups else HISTORY_EVENTS
    async for record in bus.read(journal_stream(run), filters=[each for kind in kinds for each in subject_filters(kind, run)]):
        try:
            history.apply(await journal.open(record), record.time)
        except MalformedMessage as wrong:
            if kind_of_id(record.message_id) is not None:
                raise
            log.warning("commits.foreign", run=run, seq=record.seq, reason=str(wrong))  # no service uses such ids
    return history


async def publish_account(journal: Journal, run: str, account: Iterable[TrainedGroup]) -> None:
    """Publish GroupTrained for the groups of a commit. Groups that are closed already are skipped."""
    for group in account:
        await journal.publish(GroupTrained(run=run, group=group.group, step=group.step, episodes=group.episodes))


async def publish_rest(bus: Bus, journal: Journal, run: str) -> None:
    """Publish GroupTrained for the groups of the last commit, after a closing claim: no further commit can follow.

    A commit that cannot be read is left out and logged: every fold leaves it out, too, and the run must end all the same.
    """
    try:
        history = await read_commits(bus, journal, run)
    except BadInput as wrong:
        log.error("commit.unreadable", run=run, reason=str(wrong))
        return
    await publish_account(journal, run, history.newest_account)
