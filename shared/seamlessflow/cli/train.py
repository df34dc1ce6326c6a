"""``seamlessflow train CONFIG``: a whole run, from nothing to trained weights and a report."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError

from seamlessflow.client import CONNECT_SECONDS, Client
from seamlessflow.config.run import RunConfig, load_run_config
from seamlessflow.contracts.base import RunName
from seamlessflow.errors import ConfigError

from .console import make_console
from .options import NatsUrl, Slices, StoreUrl
from .run_location import RUNS, Address, Folder, address_of
from .run_session import CONFIG_FILE, Job, request_resume
from .shutdown import EXIT_CODE
from .up import running_server, running_services

OWN_SERVER_SECONDS = 30.0
"""How long our own server, which has said that it is there, may take to answer on a busy machine."""


def train(
    config: Annotated[Path | None, typer.Argument(help="The run file (TOML); see deploy/demo for examples.")] = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run where it was left.")] = None,
    checkpoint: Annotated[
        int | None,
        typer.Option(
            metavar="STEP",
            help="With --resume: go back to the kept checkpoint of this step; training after it is lost.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new run; default: from the file and the time.")] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the file's seed.")] = None,
    steps: Annotated[int | None, typer.Option(help="Instead of the file's algorithm.steps.")] = None,
    engine: Annotated[str | None, typer.Option(help="Instead of the file's model.engine, as in --engine vllm.")] = None,
    nats: NatsUrl = None,
    store: StoreUrl = None,
    slices: Slices = None,
) -> None:
    """Train the agents of a run file; live progress, then a summary. Ctrl-C suspends the run and --resume goes on.

    Exit code 0: it ended well; 1: it failed, is held until a person decides, or was suspended because a service died again and
    again; 2: something given cannot be used, and nothing was started; 130: it was suspended by Ctrl-C or SIGTERM.

    Starts a nats-server and all five services here unless --nats says where they are.
    """
    if checkpoint is not None and resume is None:
        raise ConfigError("--checkpoint goes back in a run that is there: give --resume RUN, too")
    if (config is None) == (resume is None):
        raise ConfigError("give either a run file or --resume RUN")
    if resume is not None and (name, seed, steps, engine) != (None, None, None, None):
        raise ConfigError("--resume goes on with a run as it was started: leave out --name, --seed, --steps and --engine")
    given = {"seed": seed, "algorithm.steps": steps, "model.engine": engine}
    overrides: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    wanted = None if config is None else load_run_config(config, overrides)
    run = _checked_name(resume or name or _made_name(wanted))
    folder, elsewhere = Folder(RUNS / run), _elsewhere(run, nats, store)
    if wanted is not None and (folder.path / CONFIG_FILE).exists():
        raise ConfigError(f"there is a run named {run!r} in {folder.path}/: use --resume {run}, or another --name")
    if resume is not None and elsewhere is None and not folder.server.is_dir():
        raise ConfigError(f"run {run!r} cannot be resumed: there is no {folder.server} here and no --nats URL was given")
    job = Job(run, folder, make_console(), elsewhere)
    job.check_places(store)
    if wanted is not None:
        job.check(wanted, store)
    raise typer.Exit(asyncio.run(_train(job, wanted, store, slices, checkpoint)))


async def _train(job: Job, wanted: RunConfig | None, store: str | None, slices: int | None, checkpoint_step: int | None) -> int:
    """The run from here on; returns the exit code. ``wanted`` None: it is resumed, and the journal says what it is."""
    job.watch_signals()
    async with _server(job, store) as address, _client(job, address) as client:
        code = await _run(job, client, address, wanted, slices, checkpoint_step)
    job.left()
    return code


async def _run(
    job: Job,
    client: Client,
    address: Address,
    wanted: RunConfig | None,
    slices: int | None,
    checkpoint_step: int | None,
) -> int:
    config = await job.accepted(client, wanted)
    if config is None:
        return EXIT_CODE
    if wanted is None:  # before a trainer of ours looks
        await request_resume(client, job.run, config, checkpoint_step, job.report)
    job.keep(config, address)
    if job.elsewhere is not None:
        return await job.follow(client, config)
    async with running_services(
        job.folder,
        address,
        slices=slices,
        engine=config.model.engine,
        on_event=job.note,
        progress=job.progress,
        on_hopeless=job.give_up,
    ):
        return await job.follow(client, config)


@asynccontextmanager
async def _server(job: Job, store: str | None) -> AsyncIterator[Address]:
    if job.elsewhere is not None:
        yield job.elsewhere
        return
    async with running_server(job.folder, store_url=store, port=None, on_event=job.note) as address:
        yield address


def _client(job: Job, address: Address) -> AbstractAsyncContextManager[Client]:
    patience_seconds = OWN_SERVER_SECONDS if job.elsewhere is None else CONNECT_SECONDS
    return Client.open(address.nats_url, address.store_url, patience_seconds=patience_seconds)


def _elsewhere(run: str, nats: str | None, store: str | None) -> Address | None:
    """The server that is not ours: as given, or as the run's folder remembers. None: we start one."""
    known = Folder(RUNS / run).address()
    return address_of(run, nats, store) if nats is not None or (known is not None and known.elsewhere) else None


def _made_name(config: RunConfig | None) -> str:
    assert config is not None
    prefix = "".join(c if c.isalnum() and c.isascii() else "-" for c in config.name.lower()).strip("-")[:30] or "run"
    return f"{prefix}-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"


def _checked_name(name: str) -> str:
    try:
        return TypeAdapter(RunName).validate_python(name)
    except ValidationError as wrong:
        raise ConfigError(f"name of the run: {wrong.errors()[0]['msg'].removeprefix('Value error, ')}") from wrong
