"""``seamlessflow status`` and ``ledger``: look, change nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from seamlessflow.client import Client
from seamlessflow.contracts import RunEnded, RunHeld, RunPhase, RunState, Service
from seamlessflow.reports.ledger import Ledger, LedgerFold
from seamlessflow.reports.run_view import RunView

from .console import make_console
from .options import NatsUrl, RunArgument, StoreUrl, program
from .run_location import RUNS, Address, Folder, address_of, reach
from .submit import require_run

# Where a run stands, in words: queued, running, held, suspended, ended or refused.
#
# The journal does not show that services are gone. It does show a hold, even without a scheduler.


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


NUM_GAPS_SHOWN = 5


async def read_view(client: Client, run: str) -> tuple[RunView, Ledger]:
    """The whole journal folded twice: what the run looks like, and where every token went."""
    view, fold = RunView(), LedgerFold()
    async for record, event in client.events(run):
        view.apply(event, record.time)
        fold.add(event)
    return view, fold.ledger()


def status(run: RunArgument, nats: NatsUrl = None, store: StoreUrl = None) -> None:
    """Where a run is: queued, running, held, suspended or ended; steps, rewards, evaluations, failures."""

    async def look() -> tuple[RunView, str]:
        address = address_of(run, nats, store)
        how = how_to_go_on(run, address, program())
        async with reach(run, nats, store) as client:
            view = RunView()
            if await require_requested(client, run):
                view = (await read_view(client, run))[0]
            served = address is not None and await is_served(client)  # else the server runs for this look only
            state = as_journal(await client.run_state(run), view.held)
            return view, standing(view.ended, state, served=served, how=how)

    view, state = asyncio.run(look())
    console = make_console()
    console.print(
        f"[bold]{run}[/] {escape(state)}; step {view.step} ({view.committed_step} committed), "
        f"{view.sampled_tokens:,} tokens sampled"
    )
    for name, event in view.evaluations.items():
        scores = ", ".join(f"{env} {score:.3f}" for env, score in event.mean_reward.items())
        console.print(f"evaluation {name}: {scores} over {event.num_episodes} episodes ({event.num_failed} failed)")
    if view.steps:
        last = view.steps[-1].metrics
        console.print("last step: " + ", ".join(f"{name} {value:.4g}" for name, value in sorted(last.items())))
    if warning := view.gap_warning:
        console.print(f"[red]alarm[/] {escape(warning)}")
    for letter in view.dead_letters[-5:]:
        console.print(f"[red]dead letter[/] {escape(f'{letter.subject}: {letter.reason}')}")
    for failure in view.failures[-5:]:
        console.print(f"[yellow]failed[/] {escape(failure)}")


async def require_requested(client: Client, run: str) -> bool:
    """Whether the run has a journal. Raises ConfigError, naming the runs there are, when it was not even asked for."""
    if run in await client.runs():
        return True
    if await client.requested(run) is None:
        await require_run(client, run)
    return False


def ledger(
    run: RunArgument, nats: NatsUrl = None, store: StoreUrl = None, as_json: Annotated[bool, typer.Option("--json")] = False
) -> None:
    """Where every episode and every sampled token went, recomputed from the journal. Exit code 1 if it does not balance."""

    async def look() -> Ledger:
        async with reach(run, nats, store) as client:
            await require_run(client, run)
            return (await read_view(client, run))[1]

    found = asyncio.run(look())
    if as_json:
        print(json.dumps(found.to_json(), indent=1))
    else:
        make_console().print(ledger_table(found))
    raise typer.Exit(0 if found.balanced else 1)


def ledger_table(found: Ledger) -> Table:
    """The ledger for people."""
    title, gaps = "ledger" if found.balanced else "LEDGER DOES NOT BALANCE", ", ".join(found.gaps[:NUM_GAPS_SHOWN])
    table = Table(title=title, caption=f"{len(found.gaps)} miscounted: {escape(gaps)}" if gaps else None)
    for name in ("", "episodes", "tokens"):
        table.add_column(name, justify="left" if not name else "right")
    for column, episodes, tokens in found.rows():
        table.add_row(column, f"{episodes:,}", f"{tokens:,}")
    return table
