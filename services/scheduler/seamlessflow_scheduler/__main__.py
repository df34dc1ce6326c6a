"""``python -m seamlessflow_scheduler``."""

from __future__ import annotations

from seamlessflow.contracts import Service
from seamlessflow.runtime import open_context, run_service

from .config import SchedulerSettings
from .service import Scheduler


async def main() -> None:
    """Run one scheduler until it is stopped."""
    settings = SchedulerSettings()
    async with open_context(Service.SCHEDULER, settings, capabilities=("schedule",)) as context:
        await Scheduler(context, settings).run()


if __name__ == "__main__":
    run_service(Service.SCHEDULER, main)
