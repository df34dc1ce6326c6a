"""``seamlessflow``: the command. One file per verb; nothing here loads torch."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from seamlessflow.errors import SeamlessFlowError

from . import doctor, gantt, node_tags, replay, submit, train, up, why
from . import nodes as fleet
from . import status as inspect
from .checkpoints import checkpoint_commands
from .console import log_to_stderr
from .weights import weights_commands

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
app.command("tag")(node_tags.tag)
app.command("untag")(node_tags.untag)
app.command("drain")(node_tags.drain)
app.command("gantt")(gantt.gantt)
app.command("replay")(replay.replay)
app.add_typer(weights_commands.app, name="weights")
app.add_typer(checkpoint_commands.app, name="checkpoints")
app.command("doctor")(doctor.doctor)

_EXTRAS = {"numpy": "weights", "reasoning_gym": "tasks"}
"""What some commands import when they come to need it, and the extra that brings it."""


def main() -> None:
    """Entry point: deliberate errors are one clear message and exit code 2, never a traceback."""
    log_to_stderr()
    sys.path.insert(0, str(Path.cwd()))  # run files name people's own modules, as `python -m` would find them
    try:
        app()
    except SeamlessFlowError as wrong:
        print(f"seamlessflow: {wrong}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as wrong:
        if (extra := _EXTRAS.get(wrong.name or "")) is None:
            raise
        print(f'seamlessflow: {wrong.name} is needed and not installed: pip install "seamlessflow[{extra}]"', file=sys.stderr)
        sys.exit(2)
