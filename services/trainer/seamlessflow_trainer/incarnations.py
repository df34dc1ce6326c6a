"""Lines: how long one lasts, and what a trainer does between two of them.

a refused append, or a look at the newest claim ─▶ Superseded ─▶ nothing is acknowledged, what is held is handed back
    our node's lease still names its trainer    ─▶ a pause that grows with the claims of the last minute, then exit, not 0
    it names another node, or no trainer        ─▶ quiet until it names this one again, then a new line
    a scheduler closes the run                  ─▶ quiet: nothing is trained any more
a person asks for a rollback                    ─▶ handed back as well, then a new line, which goes back
the run is held                                 ─▶ quiet until a person answers, then a new line
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from seamlessflow.checkpoints.commit_claim import CommitClaim
from seamlessflow.checkpoints.commit_history import CommitHistory
from seamlessflow.codec import unpack_record
from seamlessflow.contracts import Event, Lease, ResumeRequested, RunEnded, RunHeld
from seamlessflow.contracts.routes import LEASES_BUCKET
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import BusClosed, SeamlessFlowError, Superseded
from seamlessflow.runtime import Context

log = structlog.get_logger()

LOOK_SECONDS = 1.0
"""How often the newest claim, and what a person asks for, are read."""
CONTENTION_SECONDS = 60.0
"""Claims of the last so many seconds make a process wait that lost its own."""
LONGEST_PAUSE_SECONDS = 30.0


class RollbackRequested(SeamlessFlowError):
    """A person wants the run to go on from an earlier checkpoint, which the next line does."""


async def until_superseded(context: Context, run: str, claim: CommitClaim, history: CommitHistory) -> None:
    """Ends with Superseded once another claim is the newest, with RollbackWanted once a rollback is requested that ``history``
    does not hold."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await claim.lost.wait()
        try:
            await claim.check()
            request = await context.journal.last(ResumeRequested, run)
        except (BusClosed, Superseded):
            raise
        except SeamlessFlowError as wrong:
            log.warning("claim.unseen", run=run, reason=str(wrong))
            continue
        if request is not None:
            history.apply(request)
        if history.wanted_step is not None:
            raise RollbackRequested(f"run {run} is to go back to the checkpoint of step {history.wanted_step}")


async def until_answered(context: Context, run: str) -> None:
    """Returns once a held run is held no more."""
    await _until(context, run, lambda: _is_answered(context, run))


async def until_leased(context: Context, run: str) -> None:
    """Returns once our node's lease says that the run's trainer is here."""
    await _until(context, run, lambda: lease_names_trainer(context, run))


async def _until(context: Context, run: str, holds: Callable[[], Awaitable[bool]]) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            if await holds():
                return
        except BusClosed:
            raise
        except SeamlessFlowError as wrong:
            log.warning("run.unseen", run=run, reason=str(wrong))


async def _is_answered(context: Context, run: str) -> bool:
    """By places in the journal alone: what cannot be read may be why the run is held."""
    held, resumed, ended = [await _seq_of(context, run, kind) for kind in (RunHeld, ResumeRequested, RunEnded)]
    return max(resumed, ended) >= held


async def _seq_of(context: Context, run: str, kind: type[Event]) -> int:
    """Of the last event of a kind; 0: there is none."""
    record = await context.bus.last(journal_stream(run), subject_filter(kind, run=run))
    return 0 if record is None else record.seq


async def lease_names_trainer(context: Context, run: str) -> bool:
    """Whether our node's lease, as it stands now, says that the run's trainer is here."""
    entry = await (await context.bus.kv(LEASES_BUCKET)).get(context.settings.node)
    lease = None if entry is None else unpack_record(Lease, entry.value)
    return lease is not None and lease.run == run and lease.trainer


async def is_leased(context: Context, run: str) -> bool:
    """``lease_names_trainer``, asked again while the server does not answer."""
    while True:
        try:
            return await lease_names_trainer(context, run)
        except BusClosed:
            raise
        except SeamlessFlowError as wrong:
            log.warning("run.unseen", run=run, reason=str(wrong))
            await asyncio.sleep(LOOK_SECONDS)


async def pause_seconds(claim: CommitClaim) -> float:
    """Seconds to wait before this process exits. They grow with the claims of the last minute, so that two processes of one
    name do not take the run from each other for ever."""
    try:
        recent = await claim.num_recent_claims(CONTENTION_SECONDS)
    except SeamlessFlowError as wrong:
        log.warning("claims.uncounted", reason=str(wrong))
        return LONGEST_PAUSE_SECONDS
    return float(min(LONGEST_PAUSE_SECONDS, 2 ** max(0, recent - 2) - 1))
