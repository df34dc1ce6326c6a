"""A claim on a run's commits: from its append on no earlier claim can commit, drop a group or end the run.

    claim ─▶ read what was committed ─▶ append, append, … ─▶ refused: another claim is newer, everything stops here

The claim's own sequence is the fence; after a commit it is the commit's. A refusal alone proves nothing, since our own append
may be stored and its acknowledgement lost: the newest message on the subject tells whose the run is.

A server that loses the end of its journal (power loss) gives a sequence away twice, and two claims may then have the same one.
So a commit is confirmed after its append: from our claim on nothing but ours may be on the subject.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import NoReturn

import structlog

from ..bus.base import Bus, Record
from ..commit_history import CommitHistory
from ..contracts import (
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
from ..contracts.addresses import subject_filters, subject_of
from ..contracts.streams import journal
from ..errors import SequenceMismatch, Superseded
from .speaker import Speaker

log = structlog.get_logger()

CLAIM_PAUSE_SECONDS = 0.05
"""Before a claim is tried again that another one, or a commit, was faster than."""

TOLD = (StepsCommitted, TrainingEnded, RunEnded, RunHeld, ResumeRequested)
"""Kinds on whose subjects all is that a history is made of."""
OnCommits = TrainerClaimed | StepsCommitted | RolledBack
"""What shares the subject whose newest message says whose the run is."""


class CommitClaim:
    """One process's claim on one run. ``by``: who claims, for people. Not valid before ``take``."""

    def __init__(self, bus: Bus, speaker: Speaker, run: str, by: str) -> None:
        self._bus, self._speaker, self._run, self._by = bus, speaker, run, by
        self._subject = subject_of(TrainerClaimed(run=run, line=0, nonce="any", by=by))
        self._seq = self._claimed_seq = 0
        self._turn = asyncio.Lock()
        self.lost = asyncio.Event()
        """Set once it was seen that another claim is newer."""
        self.nonce = ""
        self.line = 0

    async def take(self, *, closes: bool = False) -> None:
        """Become the newest claim of the run. ``closes``: for a scheduler that ends the run for good.

        Raises Superseded where a scheduler closes the run already and we do not: what is left is its to do.
        """
        while True:
            record, newest = await self._newest()
            if isinstance(newest, TrainerClaimed) and newest.closes and not closes:
                raise Superseded(
                    f"run {self._run} is being closed by {newest.by}; nothing is trained any more", is_closing=True
                )
            started = await self._speaker.last(TrainerStarted, self._run)
            line = 1 + max(0 if newest is None else newest.line, 0 if started is None else started.line)
            claim = TrainerClaimed(run=self._run, line=line, nonce=uuid.uuid4().hex[:16], by=self._by, closes=closes)
            try:
                seq = await self._speaker.append(claim, 0 if record is None else record.seq)
            except SequenceMismatch as wrong:
                log.info("claim.refused", run=self._run, line=line, reason=str(wrong))
                await asyncio.sleep(CLAIM_PAUSE_SECONDS)
                continue
            self._seq = self._claimed_seq = seq
            self.nonce, self.line = claim.nonce, line
            self.lost.clear()
            log.info("claim.taken", run=self._run, line=line, nonce=claim.nonce, closes=closes)
            return

    async def append(self, event: Event) -> None:
        """Store an event that only the newest claim may publish, as its ``nonce`` says.

        Raises Superseded: ours is not the newest, and nothing was stored that counts.
        """
        async with self._turn:  # a commit moves the fence
            while True:
                try:
                    seq = await self._speaker.append(event, self._seq)
                    break
                except SequenceMismatch as wrong:
                    await self._check(str(wrong))  # else it was our own commit that moved the fence: again
                    await asyncio.sleep(CLAIM_PAUSE_SECONDS)
            if isinstance(event, OnCommits):
                self._seq = seq
                await self._confirm()

    async def check(self) -> None:
        """Raises Superseded where another claim is newer."""
        async with self._turn:
            await self._check("it was looked for")

    async def _check(self, why: str) -> None:
        record, newest = await self._newest()
        if record is None or newest is None or newest.nonce != self.nonce:
            self._lose(newest, why)
            return
        self._seq = record.seq

    async def _confirm(self) -> None:
        """Raises Superseded where anything but ours is on the subject since our claim."""
        async for record in self._bus.read(journal(self._run), filters=(self._subject,), start_seq=self._claimed_seq):
            event = await self._speaker.open(record)
            if isinstance(event, OnCommits) and event.nonce != self.nonce:
                self._lose(event, "the server lost the end of its journal, and gave our place to another claim")

    def _lose(self, newest: OnCommits | None, why: str) -> NoReturn:
        rival = "none at all" if newest is None else f"that of line {newest.line}"
        self.lost.set()
        raise Superseded(
            f"the claim of line {self.line} on run {self._run} is not the newest, which is {rival} ({why}); nothing of it "
            "counts, and what is held is handed back",
            is_closing=isinstance(newest, TrainerClaimed) and newest.closes,
        )

    async def _newest(self) -> tuple[Record | None, OnCommits | None]:
        record = await self._bus.last(journal(self._run), self._subject)
        if record is None:
            return None, None
        event = await self._speaker.open(record)
        assert isinstance(event, OnCommits), f"{event!r} is on the subject of commits"
        return record, event


async def read_commits(bus: Bus, speaker: Speaker, run: str) -> CommitHistory:
    """What the journal holds of claims and commits now. Read after a claim was taken, no earlier claim can add to it.

    Raises MalformedMessage where one cannot be read: leaving it out would bring an older checkpoint back.
    """
    history = CommitHistory()
    async for record in bus.read(journal(run), filters=[each for kind in TOLD for each in subject_filters(kind, run)]):
        history.apply(await speaker.open(record), record.time)
    return history


async def publish_account(speaker: Speaker, run: str, account: Iterable[TrainedGroup]) -> None:
    """Publish the groups of a commit as trained. What was published before, by whomever, is not stored again."""
    for group in account:
        await speaker.say(GroupTrained(run=run, group=group.group, step=group.step, episodes=group.episodes))
