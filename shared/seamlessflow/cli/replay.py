"""``seamlessflow replay``: feed a run's journal into a fresh service in isolation and compare what it says."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

from ..bus.server import EmbeddedServer
from ..errors import ConfigError
from ..supervisor import checkout_root
from .options import NatsUrl, RunArgument, StoreUrl
from .place import RUNS, Folder

REPLAYABLE = ("trajectory-manager",)


def replay(
    run: RunArgument,
    service: Annotated[str, typer.Option(help=f"One of: {', '.join(REPLAYABLE)}.")] = "trajectory-manager",
    nats: NatsUrl = None,
    store: StoreUrl = None,
) -> None:
    """Replay a finished or running run into a fresh service; exit code 1 when it says anything else than was said."""
    if service not in REPLAYABLE:
        raise ConfigError(f"{service} cannot be replayed yet; {', '.join(REPLAYABLE)} can")
    folder = Folder(RUNS / run)
    living, server = folder.living_address(), None
    if nats is None and living is not None:
        nats = living.nats_url
    elif nats is None:
        if not folder.server.is_dir():
            raise ConfigError(f"run {run!r}: there is no folder {folder.path} here; give --nats URL and --store URL")
        server = EmbeddedServer(folder.server).start()
        nats = server.url
    address = folder.address()
    store = store or (address.store_url if address else folder.store_url)
    try:
        # A process of its own: the service's code is not part of the installed library, and the run goes on beside it.
        argv = [
            sys.executable,
            "-m",
            f"services.{service.replace('-', '_')}.replay",
            "--nats",
            nats,
            "--store",
            store,
            "--run",
            run,
        ]
        done = subprocess.run(argv, cwd=checkout_root(), check=False)
    finally:
        if server is not None:
            server.stop()
    raise typer.Exit(done.returncode)
