"""``seamlessflow up``: a nats-server and all five services on this machine, kept alive until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..bus.server import EmbeddedServer
from ..errors import ConfigError
from ..supervisor import Supervisor, Surroundings, default_slices, keep_server, service_children
from .options import NatsUrl, Slices, StoreUrl
from .place import RUNS, Address, Folder


@asynccontextmanager
async def running_services(
    folder: Folder,
    *,
    nats_url: str | None,
    store_url: str | None,
    port: int | None,
    slices: int | None,
    on_event: Callable[[str, str], None],
) -> AsyncIterator[Address]:
    """Everything up on entry, everything down in order on exit (services first, then the server)."""
    if folder.living_address() is not None:
        raise ConfigError(f"{folder.path} is in use by process {folder.living_address().pid}: stop it, or name another folder")  # type: ignore[union-attr]
    server = None if nats_url else EmbeddedServer(folder.server, port=port).start()
    address = Address(nats_url or server.url, store_url or folder.store_url, os.getpid())  # type: ignore[union-attr]
    folder.announce(address)
    keeper = None if server is None else asyncio.create_task(keep_server(server, on_event))
    around = Surroundings(address.nats_url, address.store_url, folder.work.resolve(), folder.logs)
    supervisor = Supervisor(service_children(around, slices=slices or default_slices()), on_event)
    supervisor.start()
    try:
        yield address
    finally:
        await supervisor.stop()
        if keeper is not None and server is not None:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
            server.stop()
        folder.retire()


def up(
    folder: Annotated[Path, typer.Option(help="Where server, store and logs live; used again at the next start.")] = RUNS
    / "up",
    nats: NatsUrl = None,
    store: StoreUrl = None,
    port: Annotated[int | None, typer.Option(help="Port of the embedded nats-server; default: a free one.")] = None,
    slices: Slices = None,
) -> None:
    """Start nats-server and all five services here; whatever dies is restarted. Ctrl-C ends them in order."""
    asyncio.run(_up(Folder(folder), nats, store, port, slices))


async def _up(folder: Folder, nats: str | None, store: str | None, port: int | None, slices: int | None) -> None:
    console = Console()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    def on_event(name: str, what: str) -> None:
        console.print(f"[yellow]{name}[/] {what}")

    async with running_services(folder, nats_url=nats, store_url=store, port=port, slices=slices, on_event=on_event) as address:
        console.print(f"nats-server  {address.nats_url}\nstore        {address.store_url}\nlogs         {folder.logs}/*.log")
        console.print("Five services are up. Publish a run with: seamlessflow train CONFIG --nats " + address.nats_url)
        follow = asyncio.create_task(_follow_logs(folder.logs, console))
        await stop.wait()
        follow.cancel()
        console.print("stopping: services hand back what they hold, then the server ends")


async def _follow_logs(logs: Path, console: Console) -> None:
    """One view over all services' logs: new lines, each with its service's name."""
    positions = {path: path.stat().st_size for path in _log_files(logs)}
    while True:
        for path in _log_files(logs):
            lines, positions[path] = _new_lines(path, positions.get(path, 0))
            for line in lines:
                console.print(f"{path.stem:>18} | {line}", markup=False, highlight=False, soft_wrap=True)
        await asyncio.sleep(0.3)


def _log_files(logs: Path) -> list[Path]:
    return sorted(logs.glob("*.log")) if logs.is_dir() else []


def _new_lines(path: Path, position: int) -> tuple[list[str], int]:
    """Whole lines after a position, and the position after them."""
    with path.open("rb") as file:
        file.seek(position)
        whole, newline, _ = file.read().rpartition(b"\n")
    return whole.decode(errors="replace").splitlines(), position + len(whole) + len(newline)
