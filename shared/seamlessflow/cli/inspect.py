"""``seamlessflow status`` and ``ledger``: look, change nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..client import Client
from ..ledger import Ledger, LedgerFold
from ..run_view import RunView
from .options import NatsUrl, RunArgument, StoreUrl, program
from .place import address_of, reach
from .screen import make_console
from .standing import as_journal, how_to_go_on, is_served, standing
from .submit import require_run

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
