"""``seamlessflow doctor``: is this machine able to do the job, and if not, what to do about it.

With ``--engine`` the question is another one: whether that engine samples from the weights it says (``doctor_engine``).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from seamlessflow.bus.nats_server import EmbeddedServer, find_binary
from seamlessflow.client import CONNECT_SECONDS, Client
from seamlessflow.config.run import load_run_config
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.redaction import without_password
from seamlessflow.store.large_payloads import Store

from .console import make_console
from .doctor_engine import Wanted, check_engine
from .options import NatsUrl, StoreUrl
from .run_location import given_address

ENGINE = "Self-check of an engine"
MODEL = "smollm2-135m-instruct"
MIN_FREE_BYTES = 4 << 30
PACKAGES = {
    "scheduler": ("seamlessflow_scheduler",),
    "agent-runner": ("seamlessflow_agent_runner", "aiohttp", "reasoning_gym"),
    "trajectory-manager": ("seamlessflow_trajectory_manager", "tokenizers", "jinja2", "renderers"),
    "rollout-worker": ("seamlessflow_rollout_worker", "torch", "transformers", "safetensors"),
    "trainer": ("seamlessflow_trainer", "torch", "transformers", "safetensors"),
}


def doctor(
    context: typer.Context,
    nats: NatsUrl = None,
    store: StoreUrl = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Check this engine instead: transformers, continuous_batching, vllm, …", rich_help_panel=ENGINE
        ),
    ] = None,
    run_file: Annotated[
        Path | None,
        typer.Option(
            "--run", metavar="FILE", help="A run file: its model, precision and engine options.", rich_help_panel=ENGINE
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help=f"Name or folder. Default: {MODEL}, or the run file's.", rich_help_panel=ENGINE)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Served precision: float32, bfloat16 or auto, the model's own.", rich_help_panel=ENGINE)
    ] = None,
    tokens: Annotated[int, typer.Option(min=8, help="Sampled of each prompt.", rich_help_panel=ENGINE)] = 32,
    temperature: Annotated[
        float, typer.Option(min=0.05, max=2.0, help="Of what is drawn; the rest is greedy.", rich_help_panel=ENGINE)
    ] = 0.8,
    python: Annotated[
        Path | None,
        typer.Option(
            help="Interpreter of the engine. Default: for vllm that of .venv-vllm, else this one.", rich_help_panel=ENGINE
        ),
    ] = None,
    deadline: Annotated[float, typer.Option(min=1.0, help="Seconds that all of it may take.", rich_help_panel=ENGINE)] = 900.0,
) -> None:
    """Check Python, packages, disk, the nats-server and the store. Exit code 1 when something is wrong.

    With --engine: put that engine through a self-check instead, without a
    server and without a run. It samples, greedily and drawn, and has the same
    weights published again in the middle of its generations, then others,
    then the first ones once more; a trainer takes a step at learning rate 0 on
    what was sampled. The table says

    \b
      do trainer and engine agree on logprobs    what a run calls logprob_gap
      does an update end or mislabel anything    tokens have their version
      does an update equal a fresh start         no cache of other weights

    and what an engine with other weights would show, so that you see how far
    off is told apart. When a run's logprob gap is an alarm, look here, and try
    --engine transformers beside it. One or two minutes on two cores; needs the
    extras of rollout-worker and trainer.

    \b
      seamlessflow doctor --engine transformers
      seamlessflow doctor --engine transformers --model tiny-calculator
      seamlessflow doctor --engine vllm --run my-run.toml
    """
    is_asked = engine is not None or run_file is not None
    if not is_asked and (given := _given(context, ("model", "dtype", "tokens", "temperature", "python", "deadline"))):
        raise typer.BadParameter(f"{', '.join(given)}: only together with --engine or --run, else that would be ignored")
    if is_asked and (given := _given(context, ("nats", "store"))):
        raise typer.BadParameter(f"{', '.join(given)}: not together with --engine or --run, which need neither")
    if is_asked:
        wanted = _wanted(engine, run_file, model, dtype, tokens, temperature, python, deadline)
        raise typer.Exit(0 if check_engine(wanted, make_console()) else 1)
    checks: list[tuple[str, Callable[[], str]]] = [
        ("python", _python),
        *[
            (f"packages of {service}", lambda names=names, service=service: _packages(service, names))
            for service, names in PACKAGES.items()
        ],
        ("nats-server", lambda: asyncio.run(_server(nats))),
        ("store", lambda: _store(store)),
        ("disk", _disk),
        ("cores", lambda: f"{os.cpu_count()}"),
    ]
    console, failed = make_console(), False
    for name, check in checks:
        try:
            console.print(f"[green]ok[/]    {name}: {escape(check())}")
        except (SeamlessFlowError, OSError) as wrong:
            failed = True
            console.print(f"[red]wrong[/] {name}: {escape(str(wrong))}")
    raise typer.Exit(1 if failed else 0)


def _given(context: typer.Context, names: Sequence[str]) -> list[str]:
    """Those of these options that stand on the command line, as they are typed."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [f"--{name}" for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def _wanted(
    engine: str | None,
    run_file: Path | None,
    model: str | None,
    dtype: str | None,
    tokens: int,
    temperature: float,
    python: Path | None,
    deadline: float,
) -> Wanted:
    config = None if run_file is None else load_run_config(run_file)
    if config is not None:
        given = {name: value for name, value in (("name", model), ("dtype", dtype)) if value is not None}
        config = config.model_copy(update={"model": config.model.model_copy(update=given)})
        engine = engine or config.model.engine
    return Wanted(
        engine=engine or "transformers",
        model=config.model.name if config is not None else model or MODEL,
        dtype=dtype or "auto",
        num_tokens=tokens,
        temperature=temperature,
        deadline_seconds=deadline,
        python=python,
        config=config,
    )


def _python() -> str:
    return sys.version.split()[0]


def _packages(service: str, names: tuple[str, ...]) -> str:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise SeamlessFlowError(f"{', '.join(missing)} missing: pip install 'seamlessflow[{service}]'")
    return ", ".join(names)


async def _server(nats: str | None) -> str:
    with tempfile.TemporaryDirectory() as folder:
        server = None if nats else EmbeddedServer(Path(folder)).start()
        url = server.url if server is not None else given_address(nats or "", None).nats_url
        shown = without_password(url)
        try:
            async with Client.open(url) as client:
                async with asyncio.timeout(CONNECT_SECONDS):
                    runs = await client.runs()
            return f"{shown} answers, with {len(runs)} runs" if nats else f"{find_binary()} starts and answers"
        except TimeoutError as wrong:
            raise SeamlessFlowError(f"{shown} answers, but not for JetStream: start nats-server with -js") from wrong
        finally:
            if server is not None:
                server.stop()


def _store(url: str | None) -> str:
    if url is None:
        return "inside each run's folder (give --store URL to check another)"
    store = Store(url)
    store.write("doctor/probe", b"ok")
    if store.read("doctor/probe") != b"ok":
        raise SeamlessFlowError(f"{url}: what was written is not what is read back")
    return f"{url} can be written and read"


def _disk() -> str:
    free = shutil.disk_usage(Path.cwd()).free
    if free < MIN_FREE_BYTES:
        raise SeamlessFlowError(f"{free >> 30} GiB free here, a run of the demo wants {MIN_FREE_BYTES >> 30}")
    return f"{free >> 30} GiB free"
