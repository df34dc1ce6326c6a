"""Joining a run, whose document is the first event of its journal, and stopping one that cannot go on."""

from __future__ import annotations

import asyncio

import structlog

from seamlessflow.config.run import RunConfig, parse_run_config
from seamlessflow.contracts import RunStarted, RunStopRequested, Service
from seamlessflow.errors import SeamlessFlowError

from .journal import Journal

log = structlog.get_logger()


async def read_run(journal: Journal, run: str) -> RunConfig:
    """The run's configuration; waits until the run was started, and logs that it waits."""
    waited = 0
    while True:
        try:
            started = await journal.first(RunStarted, run)
        except SeamlessFlowError as wrong:
            log.warning("run.unreadable", run=run, reason=str(wrong))
            started = None
        if started is not None:
            return parse_run_config(started.document, source=f"run {run}")
        if waited % 10 == 0:
            log.info("run.awaited", run=run)
        waited += 1
        await asyncio.sleep(0.5)


def failure_reason(service: Service, reason: str) -> str:
    """The reason of a failure with the service where it happened, as in RunEnded."""
    return f"{service.value}: {reason}"


async def stop_run(journal: Journal, service: Service, run: str, reason: str) -> None:
    """Ask for an orderly end of a run that this service cannot serve, where trying again would end the same."""
    await journal.publish(RunStopRequested(run=run, reason=failure_reason(service, reason)))
