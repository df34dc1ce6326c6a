"""Lines: which one a trainer begins, and that it ends when another trainer began a later one.

two processes of one name ─▶ each counts on from the newest line ─▶ the older sees the newer one's ─▶ exits, not 0
the lease went elsewhere  ─▶ the next trainer begins a line      ─▶ the older leaves by its lease, as ever
"""

from __future__ import annotations

import asyncio

import structlog

from seamlessflow.codec import unpack_record
from seamlessflow.contracts import Lease, TrainerStarted
from seamlessflow.contracts.routes import LEASES_BUCKET
from seamlessflow.errors import BusClosed, Refused, SeamlessFlowError
from seamlessflow.runtime import Context

log = structlog.get_logger()

LOOK_SECONDS = 1.0
"""How often the newest line is read."""


class Superseded(Refused):
    """Another process trains the run in the name of our node."""


async def begin_line(context: Context, run: str, *, step: int, weights_version: int) -> int:
    """Say TrainerStarted under the next number that nobody else has; returns it.

    Two that count at the same time come to the same number, of which the journal keeps the first. They are told apart by their
    weights: no version is published twice.
    """
    speaker = context.speaker
    while True:
        earlier = await speaker.last(TrainerStarted, run)
        line = 1 if earlier is None else earlier.line + 1
        await speaker.say(TrainerStarted(run=run, line=line, step=step, weights_version=weights_version))
        newest = await speaker.last(TrainerStarted, run)
        if newest is None or newest.line > line or newest.weights_version == weights_version:
            return line
        log.info("line.taken", run=run, line=line, by_weights_version=newest.weights_version)


async def until_superseded(context: Context, run: str, line: int) -> Superseded:
    """Returns once a later line of the run began, and our node's lease still says that its trainer is here."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            newest = await context.speaker.last(TrainerStarted, run)
            if newest is not None and newest.line > line and await _is_trainer(context, run):
                return Superseded(
                    f"line {newest.line} of run {run} began while line {line} was trained here, and node "
                    f"{context.settings.node} is still the one to train it: another trainer process has its name, or "
                    "this one stood still while another trained. It ends; give each process a SEAMLESSFLOW_NODE of its own"
                )
        except BusClosed:
            raise
        except SeamlessFlowError as wrong:
            log.warning("line.unseen", run=run, reason=str(wrong))


async def _is_trainer(context: Context, run: str) -> bool:
    """Whether the lease that stands says so."""
    entry = await (await context.bus.kv(LEASES_BUCKET)).get(context.settings.node)
    lease = None if entry is None else unpack_record(Lease, entry.value)
    return lease is not None and lease.run == run and lease.trainer
