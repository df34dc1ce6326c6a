"""Lines: how long one lasts, and what its process does when another claim on the run's commits is newer.

a refused append, or a look at the newest claim ─▶ Superseded ─▶ nothing is acknowledged, what is held is handed back
    our node's lease still names its trainer    ─▶ a pause that grows with the claims of the last minute, then exit, not 0
    it names another node, or no trainer        ─▶ quiet until our lease changes
    a scheduler closes the run                  ─▶ quiet: nothing is trained any more
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import structlog

from seamlessflow.codec import unpack_record
from seamlessflow.commit_history import CommitHistory
from seamlessflow.contracts import Lease, ResumeRequested
from seamlessflow.contracts.routes import LEASES_BUCKET
from seamlessflow.errors import BusClosed, SeamlessFlowError, Superseded
from seamlessflow.runtime import CommitClaim, Context, read_commits

log = structlog.get_logger()

LOOK_SECONDS = 1.0
"""How often the newest claim is read."""
CONTENTION_SECONDS = 60.0
"""Claims of the last so many seconds make a process wait that lost its own."""
LONGEST_PAUSE_SECONDS = 30.0


class RollbackWanted(Superseded):
    """A person wants the run to go on from an earlier checkpoint, which the next line does."""


async def until_superseded(context: Context, run: str, claim: CommitClaim, history: CommitHistory) -> None:
    """Ends with Superseded once another claim is the newest, or a rollback is requested that ``history`` does not hold."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await claim.lost.wait()
        try:
            await claim.check()
            request = await context.speaker.last(ResumeRequested, run)
            if request is not None:
                history.apply(request)
            if history.wanted_step is not None:
                raise RollbackWanted(
                    f"run {run} is to go back to the checkpoint of step {history.wanted_step}: line {claim.line} ends, and the "
                    "next one begins there"
                )
        except (BusClosed, Superseded):
            raise
        except SeamlessFlowError as wrong:
            log.warning("claim.unseen", run=run, reason=str(wrong))


async def is_named(context: Context, run: str) -> bool:
    """Whether our node's lease, as it stands now, says that the run's trainer is here."""
    entry = await (await context.bus.kv(LEASES_BUCKET)).get(context.settings.node)
    lease = None if entry is None else unpack_record(Lease, entry.value)
    return lease is not None and lease.run == run and lease.trainer


async def pause_seconds(context: Context, run: str) -> float:
    """How long a process that lost its claim waits before it makes room for its next life: two of one name would otherwise take
    the run from each other for ever, and neither would come to a commit."""
    history = await read_commits(context.bus, context.speaker, run)
    since = time.time() - CONTENTION_SECONDS
    recent = sum(at >= since for at in history.claim_times)
    return float(min(LONGEST_PAUSE_SECONDS, 2 ** max(0, recent - 2) - 1))
