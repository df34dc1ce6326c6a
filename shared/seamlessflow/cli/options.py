"""Options that several verbs share, described once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

NatsUrl = Annotated[
    str | None,
    typer.Option(
        "--nats",
        envvar="SEAMLESSFLOW_NATS_URL",
        help="A nats-server with JetStream: its URL, or the folder of a running `seamlessflow up`. Default: the run's own.",
    ),
]
StoreUrl = Annotated[
    str | None, typer.Option("--store", envvar="SEAMLESSFLOW_STORE_URL", help="Any fsspec URL; default: inside the run folder.")
]
Slices = Annotated[
    int | None,
    typer.Option(min=1, help="Devices this machine is cut into; the last one also trains. Default: 2, or 1 on one core."),
]
RunArgument = Annotated[str, typer.Argument(help="Name of the run, as `train` printed it.")]


def program() -> str:
    """What to type to run this command again: the path from here where that was typed, as in ``.venv/bin/seamlessflow``."""
    typed = Path(sys.argv[0])
    return str(typed) if typed.name == "seamlessflow" and not typed.is_absolute() else "seamlessflow"
