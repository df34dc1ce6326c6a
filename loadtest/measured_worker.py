"""``python -m loadtest.measured_worker``: the rollout-worker as it is, around an engine that notes when what happens.

It says a JSON line when its engine has started, and for each line that it is told what was noted since (``MeasuredEngine``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from loadtest.gateway_child import lines_told, reply
from loadtest.measured_engine import MeasuredEngine
from seamlessflow.config.run import RunConfig
from seamlessflow.contracts import Service
from seamlessflow.runtime import open_context
from seamlessflow_rollout_worker.config import WorkerSettings
from seamlessflow_rollout_worker.engines.base import Engine
from seamlessflow_rollout_worker.engines.factory import build_engine
from seamlessflow_rollout_worker.service import RolloutWorker

LOOK_SECONDS = 0.05


async def main() -> None:
    settings = WorkerSettings()
    made: list[MeasuredEngine] = []

    def build(config: RunConfig, settings: WorkerSettings, folder: Path) -> Engine:
        made.append(MeasuredEngine(build_engine(config, settings, folder)))
        return made[-1]

    async with open_context(Service.ROLLOUT_WORKER, settings, capabilities=settings.announced("rollout")) as context:
        telling = asyncio.create_task(_tell(made, lambda: context.presence.status.state == "sampling"))
        try:
            await RolloutWorker(context, settings, build=build).run()
        finally:
            telling.cancel()


async def _tell(made: list[MeasuredEngine], is_ready: Callable[[], bool]) -> None:
    lines = await lines_told()
    while not is_ready():  # noqa: ASYNC110 - presence tells nobody of a change
        await asyncio.sleep(LOOK_SECONDS)
    reply("ready")
    while await lines.readline():
        reply(made[-1].told())


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
