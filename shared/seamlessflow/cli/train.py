"""``seamlessflow train CONFIG``: a whole run, from nothing to trained weights and a report."""

from __future__ import annotations

import asyncio
import datetime
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..blobs import Store
from ..client import Client
from ..errors import ConfigError
from ..run_config import RunConfig, load_run_config
from ..task_sources import Questions, evaluation_tasks, load_questions, training_task
from .follow import Follower
from .options import NatsUrl, Slices, StoreUrl
from .place import RUNS, Folder
from .result import finish
from .up import running_services

CONFIG_FILE = "config.toml"
AHEAD_STEPS = 3
"""Training tasks are published this many steps ahead of what was admitted."""


def train(
    config: Annotated[Path | None, typer.Argument(help="The run file (TOML); see deploy/demo for examples.")] = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run where it was left.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the new run; default: from the file and the time.")] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the file's seed.")] = None,
    steps: Annotated[int | None, typer.Option(help="Instead of the file's algorithm.steps.")] = None,
    nats: NatsUrl = None,
    store: StoreUrl = None,
    slices: Slices = None,
) -> None:
    """Train the agents of a run file; live progress, then a summary. Ctrl-C ends cleanly and --resume goes on.

    Starts a nats-server and all five services here unless --nats says where they are.
    """
    if (config is None) == (resume is None):
        raise ConfigError("give either a run file or --resume RUN")
    run = resume or name or f"{_prefix(config)}-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"
    folder = Folder(RUNS / run)
    source = folder.path / CONFIG_FILE if resume else config
    assert source is not None
    if resume and not source.is_file():
        raise ConfigError(f"run {resume!r} cannot be resumed: there is no {source}")
    overrides: dict[str, Any] = {k: v for k, v in (("seed", seed), ("algorithm.steps", steps)) if v is not None}
    wanted = load_run_config(source, overrides)
    raise typer.Exit(asyncio.run(_train(run, folder, wanted, source, nats, store, slices, resumed=resume is not None)))


def _prefix(config: Path | None) -> str:
    assert config is not None
    return "".join(c if c.isalnum() else "-" for c in load_run_config(config).name.lower()).strip("-")[:30] or "run"


async def _train(
    run: str,
    folder: Folder,
    config: RunConfig,
    source: Path,
    nats: str | None,
    store: str | None,
    slices: int | None,
    *,
    resumed: bool,
) -> int:
    console = Console()
    began = time.monotonic()
    questions = load_questions(config.tasks, config.seed)
    prepare_model(config.model.name, console)
    _check_store(store or folder.store_url)
    folder.path.mkdir(parents=True, exist_ok=True)
    if not resumed:
        _keep_config(folder, config)
    console.print(
        f"run [bold]{run}[/] in {folder.path}/ "
        f"({len(questions.training)} training and {len(questions.held_out)} held-out questions)"
    )
    follower = Follower(run, config, folder, console)
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    if nats is not None:
        async with Client.open(nats, store or folder.store_url) as client:
            await _drive(client, run, config, questions, follower, interrupted, resumed=resumed)
            return await finish(client, run, config, questions, follower, folder, began, interrupted=interrupted.is_set())
    async with (
        running_services(folder, nats_url=None, store_url=store, port=None, slices=slices, on_event=follower.note) as address,
        Client.open(address.nats_url, address.store_url) as client,
    ):
        await _drive(client, run, config, questions, follower, interrupted, resumed=resumed)
        return await finish(client, run, config, questions, follower, folder, began, interrupted=interrupted.is_set())


async def _drive(
    client: Client,
    run: str,
    config: RunConfig,
    questions: Questions,
    follower: Follower,
    interrupted: asyncio.Event,
    *,
    resumed: bool,
) -> None:
    """Publish the request and the tasks, and follow the journal, until the run ended or Ctrl-C."""
    if not resumed and not await client.request_run(run, config):
        raise ConfigError(f"a run named {run!r} exists on this server; use --resume, or another --name")
    following = asyncio.create_task(follower.run_until_end(client))
    feeding = asyncio.create_task(_feed(client, run, config, questions, follower))
    stop = asyncio.create_task(interrupted.wait())
    done, _ = await asyncio.wait([following, stop, feeding], return_when=asyncio.FIRST_COMPLETED)
    while feeding in done and following not in done and stop not in done:
        feeding.result()
        done, _ = await asyncio.wait([following, stop], return_when=asyncio.FIRST_COMPLETED)
    for task in (following, feeding, stop):
        task.cancel()
    results = await asyncio.gather(following, feeding, stop, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, asyncio.CancelledError):
            raise result


async def _feed(client: Client, run: str, config: RunConfig, questions: Questions, follower: Follower) -> None:
    """Keep the task queue a few steps ahead of admission. With ``tasks.source = "queue"`` users feed it instead."""
    if not questions.training:
        return
    await follower.seen_start.wait()
    for task in evaluation_tasks(run, config, questions):
        await client.submit(task)
    published = follower.view.groups_admitted
    ahead = AHEAD_STEPS * config.algorithm.groups_per_step
    while True:
        while published < follower.view.groups_admitted + ahead:
            await client.submit(training_task(run, config, questions, published))
            published += 1
        await asyncio.sleep(0.2)


def prepare_model(name: str, console: Console) -> None:
    """Have the model here before anything starts, so that a wrong name is said at once. In a process of its own: torch."""
    with console.status(f"preparing model {name}"):
        done = subprocess.run([sys.executable, "-m", "seamlessflow.models", name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"model.name: {name!r} cannot be had:\n{done.stderr.strip()[-1500:]}")


def _check_store(url: str) -> None:
    Store(url).write("probe", b"written before the run began, to know that the store can be written")


def _keep_config(folder: Folder, config: RunConfig) -> None:
    """The run's own configuration, overrides included, so that --resume needs nothing else."""
    (folder.path / CONFIG_FILE).write_text(to_toml(config.model_dump(mode="json", exclude_none=True)))


def to_toml(document: dict[str, Any]) -> str:
    """A run document as TOML. Only the shapes a RunConfig has: scalars, lists, tables, and a list of tables."""
    import tomli_w

    return tomli_w.dumps(document)
