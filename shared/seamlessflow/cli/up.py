"""``seamlessflow up``: a nats-server and all five services on this machine, kept alive until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from seamlessflow.bus.nats_server import EmbeddedServer, ServerKeeper
from seamlessflow.config.sampling_sections import ModelSection
from seamlessflow.errors import ConfigError
from seamlessflow.local.services import Machine, check_installed, default_slices, service_children
from seamlessflow.local.supervisor import Say, Supervisor
from seamlessflow.redaction import without_password

from .console import make_console
from .options import NatsUrl, Slices, StoreUrl
from .preflight import check_folder, check_store
from .run_location import RUNS, Address, Folder, given_address
from .shutdown import Interrupt

ENGINES: tuple[str, ...] = get_args(ModelSection.model_fields["engine"].annotation)


@asynccontextmanager
async def running_server(folder: Folder, *, store_url: str | None, port: int | None, on_event: Say) -> AsyncIterator[Address]:
    """A nats-server of this folder's own, kept alive inside; its address is left in the folder for others."""
    _refuse_if_in_use(folder)
    known = folder.address()
    kept = known.store_url if known is not None and not known.elsewhere else None
    keeper = ServerKeeper(EmbeddedServer(folder.server, port=port), on_event)
    await keeper.start()
    address = Address(keeper.server.url, store_url or kept or folder.store_url, os.getpid())
    folder.announce(address)
    try:
        yield address
    finally:
        await keeper.stop()
        folder.retire()


@asynccontextmanager
async def running_services(
    folder: Folder,
    address: Address,
    *,
    slices: int | None,
    on_event: Say,
    engine: str = "transformers",
    progress: Callable[[], float] = lambda: 0.0,
    on_hopeless: Say | None = None,
) -> AsyncIterator[None]:
    """All services of this machine, on a server and its store; ended in order. For the rest see Supervisor."""
    assert address.store_url is not None
    machine = Machine(address.nats_url, address.store_url, folder.work.resolve(), folder.logs)
    children = service_children(machine, slices=slices or default_slices(), engine=engine)
    supervisor = Supervisor(children, on_event, progress=progress, on_hopeless=on_hopeless)
    supervisor.start()
    try:
        yield
    finally:
        await supervisor.stop()


def _refuse_if_in_use(folder: Folder) -> None:
    living = folder.living_address()
    if living is not None and living.pid:
        raise ConfigError(f"{folder.path} is in use by process {living.pid}: stop it, or name another folder")


def up(
    folder: Annotated[Path, typer.Option(help="Where server, store and logs live; used again at the next start.")] = RUNS
    / "up",
    nats: NatsUrl = None,
    store: StoreUrl = None,
    port: Annotated[int | None, typer.Option(help="Port of the embedded nats-server; default: a free one.")] = None,
    slices: Slices = None,
    engine: Annotated[
        str, typer.Option(help="vllm: rollout-workers run in the environment that has vLLM, for runs that ask for it.")
    ] = "transformers",
) -> None:
    """Start nats-server and all five services here; whatever dies is restarted. Ctrl-C ends them in order."""
    check_folder(folder)
    if engine not in ENGINES:
        raise ConfigError(f"--engine {engine}: expected one of {', '.join(ENGINES)}")
    check_installed(engine)
    if store is not None:
        check_store(store)
    asyncio.run(_up(Folder(folder), nats, store, port, slices, engine))


async def _up(folder: Folder, nats: str | None, store: str | None, port: int | None, slices: int | None, engine: str) -> None:
    console = make_console()

    def on_event(name: str, what: str) -> None:
        console.print(f"{name} {what}", style="yellow", markup=False, soft_wrap=True)

    interrupt = Interrupt(
        lambda line: console.print(line, markup=False), "services hand back what they hold, then the server ends"
    )
    async with AsyncExitStack() as stack:
        if nats is None:
            address = await stack.enter_async_context(running_server(folder, store_url=store, port=port, on_event=on_event))
            where = str(folder.path)
        else:
            _refuse_if_in_use(folder)
            given = given_address(nats, store)
            address = Address(given.nats_url, given.store_url or folder.store_url, os.getpid())
            folder.announce(address)
            stack.callback(folder.retire)
            where = without_password(address.nats_url)
        await stack.enter_async_context(running_services(folder, address, slices=slices, on_event=on_event, engine=engine))
        console.print(f"nats-server  {without_password(address.nats_url)}\nstore        {address.store_url}", markup=False)
        console.print(f"logs         {folder.logs}/*.log", markup=False)
        console.print(f"Five services are up. Publish a run with: seamlessflow train CONFIG --nats {where}", markup=False)
        follow = asyncio.create_task(_follow_logs(folder.logs, console))
        await interrupt.requested.wait()
        follow.cancel()


async def _follow_logs(logs: Path, console: Console) -> None:
    """One view over all services' logs: new lines, each with its service's name."""
    positions = {path: path.stat().st_size for path in _log_files(logs)}
    while True:
        for path in _log_files(logs):
            lines, positions[path] = _new_lines(path, positions.get(path, 0))
            for line in lines:
                console.print(f"{path.stem:>18} | {line}", markup=False, soft_wrap=True)
        await asyncio.sleep(0.3)


def _log_files(logs: Path) -> list[Path]:
    return sorted(logs.glob("*.log")) if logs.is_dir() else []


def _new_lines(path: Path, position: int) -> tuple[list[str], int]:
    """Whole lines after a position, and the position after them."""
    with path.open("rb") as file:
        file.seek(position)
        whole, newline, _ = file.read().rpartition(b"\n")
    return whole.decode(errors="replace").splitlines(), position + len(whole) + len(newline)
