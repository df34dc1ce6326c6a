"""Start an agent-runner: ``python -m seamlessflow_agent_runner``; with ``--gateway-only`` one that starts no agents."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from seamlessflow.config.settings import forget_environment
from seamlessflow.contracts import Service
from seamlessflow.local.child_processes import hide_secrets
from seamlessflow.runtime import open_context, run_service

from .config import RunnerSettings
from .service import AgentRunner

_DESCRIPTION = """\
Runs the agents of a training run, and gives them the endpoint their model is behind.

With --gateway-only it starts none: it serves agents that run elsewhere (external = true in the run file). Each opens an
episode with POST /episodes, talks to its model at the base_url it gets, and ends it with POST /episodes/{id}/reward;
docs/operations.md shows it with curl."""
_SHOWN = ("nats_url", "store_url", "node", *(name for name in RunnerSettings.model_fields if name.startswith("gateway_")))


def parser() -> argparse.ArgumentParser:
    """``--help`` teaches: what it does, and the settings that matter here."""
    lines = []
    for name in _SHOWN:
        field = RunnerSettings.model_fields[name]
        lines.append(f"  SEAMLESSFLOW_{name.upper()}\n      {' '.join((field.description or '').split())}")
    made = argparse.ArgumentParser(
        prog="python -m seamlessflow_agent_runner",
        description=_DESCRIPTION,
        epilog="settings, from the environment:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--gateway-only", action="store_true", help="start no agents, serve those that run elsewhere")
    return made


async def main(arguments: Sequence[str] = ()) -> None:
    """Until SIGTERM. Raises ConfigError."""
    hide_secrets()  # agents have the same user: they could read our environment and memory
    settings = RunnerSettings(gateway_only=True) if parser().parse_args(arguments).gateway_only else RunnerSettings()
    forget_environment()
    async with open_context(Service.AGENT_RUNNER, settings, capabilities=settings.announced("serve")) as context:
        await AgentRunner(context, settings).run()


if __name__ == "__main__":
    run_service(Service.AGENT_RUNNER, partial(main, sys.argv[1:]))
