"""``seamlessflow gantt``: what every node of a run did, as pictures and as a table, from its journal alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from seamlessflow.client import Client
from seamlessflow.contracts.routes import BY_EVENT
from seamlessflow.errors import ConfigError
from seamlessflow.timeline import READS, Shares, Timeline, TimelineFold
from seamlessflow.timeline.draw import write_html, write_png
from seamlessflow.timeline.draw.layout import Rows, columns_of, duration, percent, rows_of

from .console import make_console
from .options import NatsUrl, RunArgument, StoreUrl
from .run_location import RUNS, reach
from .submit import require_run

NO_USE = tuple(event for event in BY_EVENT if event not in READS)
MOST_ROWS = 32
"""A larger fleet is told by its groups and its least busy nodes."""
NUM_LEAST_BUSY = 5


def gantt(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the pictures. Default: the run's own, runs/RUN.")
    ] = None,
    since: Annotated[float | None, typer.Option("--from", metavar="S", help="Begin so many seconds after the run did.")] = None,
    until: Annotated[float | None, typer.Option("--to", metavar="S", help="End so many seconds after the run began.")] = None,
    png: Annotated[bool, typer.Option(help="Whether gantt.png is written, too; it needs the extra `report`.")] = True,
    nats: NatsUrl = None,
    store: StoreUrl = None,
) -> None:
    """What every node did, when: gantt.html, gantt.png and a table, of a run that ended or of one that goes on."""
    if since is not None and until is not None and since >= until:
        raise ConfigError(f"--from {since:g} --to {until:g}: there is nothing between the two")

    async def read() -> Timeline:
        async with reach(run, nats, store) as client:
            await require_run(client, run)
            return await read_lanes(client, run)

    console = make_console()
    with console.status(f"reading the journal of {run}"):
        lanes = asyncio.run(read())
    if not lanes.spans:
        raise ConfigError(f"run {run}: no node has had a device yet, so there is nothing to draw; see `seamlessflow nodes`")
    if since is not None or until is not None:
        lanes = _part(lanes, since, until)
    _print(console, lanes, rows_of(lanes))
    _write(console, lanes, out or RUNS / run, png=png)


async def read_lanes(client: Client, run: str) -> Timeline:
    """A run's journal, folded; of a run that goes on, up to now."""
    fold = TimelineFold()
    async for record, event in client.events(run, without=NO_USE):
        fold.apply(event, record.time)
    return fold.lanes(run)


def _part(lanes: Timeline, since: float | None, until: float | None) -> Timeline:
    part = lanes.part(since, until)
    if not part.spans:
        asked = " ".join(f"--{name} {at:g}" for name, at in (("from", since), ("to", until)) if at is not None)
        raise ConfigError(f"{asked}: run {lanes.title} lasted {lanes.end - lanes.start:.1f} s, so there is nothing to draw")
    return part


def _write(console: Console, lanes: Timeline, folder: Path, *, png: bool) -> None:
    written = [folder / "gantt.html"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_html(lanes, written[0])
        if png:
            write_png(lanes, folder / "gantt.png")
            written.append(folder / "gantt.png")
    except ImportError as wrong:
        needs = f"gantt.png was not written ({wrong}): it needs `pip install 'seamlessflow[report]'`, or say --no-png"
        console.print(needs, style="yellow", markup=False, soft_wrap=True)
    except OSError as wrong:
        why = wrong.strerror or wrong
        raise ConfigError(f"cannot write pictures into {folder} ({why}): give --out a folder that you may write to") from wrong
    console.print(f"pictures: {', '.join(map(str, written))}", markup=False, soft_wrap=True)


def _print(console: Console, lanes: Timeline, rows: Rows) -> None:
    window = rows.window[1] - rows.window[0]
    table = Table(title=f"{escape(lanes.title)}: {rows.window_text}, {duration(window)}")
    columns = columns_of(row.shares for row in rows.rows)
    for name in ("", *columns):
        table.add_column(name, justify="left" if not name else "right")

    def add(name: str, shares: Shares, style: str | None = None) -> None:
        table.add_row(escape(name), *(percent(value(shares)) for value in columns.values()), style=style)

    if len(rows.rows) <= MOST_ROWS:
        for row in rows.rows:
            add(row.node, row.shares)
    else:
        for group in rows.groups:
            add(f"{len(group.rows):,} nodes: {group.name}", group.shares)
        for row in sorted(rows.rows, key=lambda row: row.shares.busy)[:NUM_LEAST_BUSY]:
            add(f"least busy: {row.node}", row.shares, "dim")
    table.add_section()
    add("all", rows.shares, "bold")
    console.print(table)
    for note in lanes.notes:
        console.print(note, style="yellow", markup=False, soft_wrap=True)
