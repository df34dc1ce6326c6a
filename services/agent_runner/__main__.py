"""Start an agent-runner: ``python -m services.agent_runner``."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

from seamlessflow.contracts import Service
from seamlessflow.errors import ConfigError
from seamlessflow.processes import hide_secrets
from seamlessflow.runtime import open_context
from seamlessflow.settings import forget_environment

from .config import RunnerSettings
from .service import AgentRunner


async def main() -> None:
    hide_secrets()  # agents have the same user: they could read our environment and memory
    settings = RunnerSettings()
    forget_environment()
    async with open_context(Service.AGENT_RUNNER, settings, capabilities=("serve",)) as context:
        await AgentRunner(context, settings).run()


if __name__ == "__main__":
    with suppress(ImportError):
        import uvloop

        uvloop.install()
    try:
        asyncio.run(main())
    except ConfigError as wrong:
        sys.exit(f"agent-runner cannot start: {wrong}")
