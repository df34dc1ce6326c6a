"""``seamlessflow``: the command. One file per verb; nothing here loads torch."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from ..errors import SeamlessFlowError
from . import checkpoints, doctor, fleet, gantt, inspect, orders, replay, submit, train, up, weights, why
from .screen import log_to_stderr

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Reinforcement learning of language-model agents that stay exactly as they are.\n\n"
    "Start with:  seamlessflow train deploy/demo/tiny.toml",
)
app.command("up")(up.up)
app.command("train")(train.train)
app.command("submit")(submit.submit)
app.command("stop")(submit.stop)
app.command("status")(inspect.status)
app.command("ledger")(inspect.ledger)
app.command("nodes")(fleet.nodes)
app.command("why")(why.why)
app.command("tag")(orders.tag)
app.command("untag")(orders.untag)
app.command("drain")(orders.drain)
app.command("gantt")(gantt.gantt)
app.command("replay")(replay.replay)
app.add_typer(weights.app, name="weights")
app.add_typer(checkpoints.app, name="checkpoints")
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Entry point: deliberate errors are one clear message and exit code 2, never a traceback."""
    log_to_stderr()
    sys.path.insert(0, str(Path.cwd()))  # run files name people's own modules, as `python -m` would find them
    try:
        app()
    except SeamlessFlowError as wrong:
        print(f"seamlessflow: {wrong}", file=sys.stderr)
        sys.exit(2)
