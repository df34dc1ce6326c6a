"""Where a run stands, in words: queued, running, held, suspended, ended or refused.

The journal does not show that services are gone. It does show a hold, even without a scheduler.
"""

from __future__ import annotations

from ..client import Client
from ..contracts import RunEnded, RunHeld, RunPhase, RunState, Service
from .place import RUNS, Address, Folder


async def is_served(client: Client) -> bool:
    """Whether a scheduler is there now: without one nothing goes on. Presence runs out a few seconds after a sudden death."""
    return any(status.service == Service.SCHEDULER for status, _ in await client.nodes())


def standing(ended: RunEnded | None, state: RunState | None, *, served: bool, how: str) -> str:
    """One phrase. ``served``: whether a scheduler is there; ``how``: what to do when none is.

    ``state``: the scheduler's word, None before it has one. An old word of one that is gone counts for nothing, but that the
    run is held: see ``as_journal``.
    """
    if ended is not None:
        return f"ended ({ended.reason})"
    if state is not None and state.phase is RunPhase.REFUSED:
        return f"refused: {state.reason}"
    if state is not None and state.phase is RunPhase.HELD:
        return f"held: {state.reason}"
    if not served:
        begun = state is not None and state.phase is RunPhase.RUNNING
        return f"suspended{'' if begun else ' before it began'}: nobody serves it; {how}"
    if state is None:
        return "queued: the scheduler has not begun it"
    waits = f", waits: {state.reason}" if state.reason else ""
    return f"{'queued' if state.phase is RunPhase.QUEUED else 'running'}{waits}"


def as_journal(state: RunState | None, held: RunHeld | None) -> RunState | None:
    """The scheduler's word, brought up to what the journal tells: whether the run is held, and why."""
    if held is not None:
        return RunState(phase=RunPhase.HELD, reason=held.reason, requested_at=0.0 if state is None else state.requested_at)
    if state is not None and state.phase is RunPhase.HELD:
        return state.model_copy(update={"phase": RunPhase.RUNNING, "reason": ""})
    return state


def how_to_go_on(run: str, address: Address | None, command: str) -> str:
    """What makes a run go on that nobody serves. ``address``: where its server is now, None: nowhere."""
    if address is None:
        return f"go on with: {command} train --resume {run}"
    if address.elsewhere:
        return f"start its services: {command} up --nats URL, or wherever they belong"
    return f"its services are starting, or {Folder(RUNS / run).logs} says why not"
