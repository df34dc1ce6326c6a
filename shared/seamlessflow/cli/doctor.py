"""``seamlessflow doctor``: is this machine able to do the job, and if not, what to do about it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import typer
from rich.markup import escape

from ..blobs import Store
from ..bus.server import EmbeddedServer, find_binary
from ..client import CONNECT_SECONDS, Client
from ..errors import SeamlessFlowError
from ..machine import checkout_root
from ..secrecy import without_password
from .options import NatsUrl, StoreUrl
from .place import given_address
from .screen import make_console

MIN_FREE_BYTES = 4 << 30
PACKAGES = {
    "agent-runner": ("aiohttp", "reasoning_gym"),
    "trajectory-manager": ("tokenizers", "jinja2", "renderers"),
    "rollout-worker": ("torch", "transformers", "safetensors"),
    "trainer": ("torch", "transformers", "safetensors"),
}


def doctor(nats: NatsUrl = None, store: StoreUrl = None) -> None:
    """Check Python, packages, disk, the nats-server and the store. Exit code 1 when something is missing."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("python", _python),
        *[
            (f"packages of {service}", lambda names=names, service=service: _packages(service, names))
            for service, names in PACKAGES.items()
        ],
        ("checkout", lambda: str(checkout_root())),
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
