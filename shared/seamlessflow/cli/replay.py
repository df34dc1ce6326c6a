"""``seamlessflow replay``: feed a run's journal into a fresh service in isolation and compare what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from seamlessflow.errors import ConfigError
from seamlessflow.local.services import modules_of

from .options import NatsUrl, RunArgument, StoreUrl
from .run_location import address_of, stopped_run

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
    (module,) = modules_of(service)
    address = address_of(run, nats, store)
    with nullcontext(address) if address is not None else stopped_run(run, store) as there:
        if there.store_url is None:
            raise ConfigError("replay reads the run's store: give --store URL, the one the services use")
        # A process of its own: the library imports no service, and the run goes on beside it.
        # The URL may hold a password, which everybody could read from a command line.
        argv = [sys.executable, "-m", f"{module}.replay", "--run", run]
        where = {"SEAMLESSFLOW_NATS_URL": there.nats_url, "SEAMLESSFLOW_STORE_URL": there.store_url}
        done = subprocess.run(argv, env={**os.environ, **where}, check=False)
    raise typer.Exit(done.returncode)
