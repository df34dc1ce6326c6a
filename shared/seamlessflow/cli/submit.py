"""``seamlessflow submit`` and ``stop``: say something to a run that goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from seamlessflow.client import Client
from seamlessflow.contracts import TaskSubmitted
from seamlessflow.errors import ConfigError

from .options import NatsUrl, RunArgument, StoreUrl
from .run_location import reach


def submit(
    file: Annotated[Path, typer.Argument(help='JSON lines, one task each: {"task": "t1", "env": "single", "prompt": "..."}')],
    run: Annotated[str, typer.Option("--run", help="The run to publish to.")],
    nats: NatsUrl = None,
    store: StoreUrl = None,
    end: Annotated[bool, typer.Option(help="Say afterwards that no more tasks will come.")] = False,
) -> None:
    """Publish tasks to a run's queue. A wrong line is reported with its number; nothing is published unless all are right."""
    tasks = read_tasks(file, run)
    new = asyncio.run(_submit(run, tasks, nats, store, end))
    print(
        f"{new} of {len(tasks)} tasks published to {run}"
        + (f", {len(tasks) - new} were there already" if new < len(tasks) else "")
    )


def read_tasks(file: Path, run: str) -> list[TaskSubmitted]:
    """Tasks of a JSON lines file. Raises ConfigError that lists every wrong line."""
    if not file.is_file():
        raise ConfigError(f"{file}: no such file")
    tasks, problems = [], []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            fields: dict[str, Any] = json.loads(line)
            tasks.append(TaskSubmitted.model_validate({**fields, "run": run}))
        except (ValueError, ValidationError, TypeError) as wrong:
            problems.append(f"  line {number}: {_reason(wrong)}")
    if problems:
        raise ConfigError(f"{file}: nothing was published:\n" + "\n".join(problems))
    return tasks


def _reason(wrong: Exception) -> str:
    if isinstance(wrong, ValidationError):
        return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong.errors())
    if isinstance(wrong, json.JSONDecodeError):  # its own words count lines of their own
        return f"not JSON at character {wrong.pos + 1}: {wrong.msg}"
    return str(wrong)


async def _submit(run: str, tasks: list[TaskSubmitted], nats: str | None, store: str | None, end: bool) -> int:
    async with reach(run, nats, store) as client:
        await require_run(client, run)
        config = await client.requested(run)
        if config is not None:
            require_known_envs(tasks, config.envs)
        new = sum([await client.submit(task) for task in tasks])
        if end:
            await client.end_tasks(run)
        return new


def require_known_envs(tasks: Iterable[TaskSubmitted], envs: Collection[str]) -> None:
    """Raise ConfigError that names the tasks nobody of the run would do."""
    unknown = [f"  task {task.task}: env {task.env!r}" for task in tasks if task.env not in envs]
    if unknown:
        what = f"nothing was published: the run's environments are {', '.join(sorted(envs))}"
        raise ConfigError("\n".join([what, *unknown]))


def stop(run: RunArgument, nats: NatsUrl = None) -> None:
    """Ask for an orderly end of a run: what is trained is committed, the rest is dropped as run_ended."""

    async def ask() -> None:
        async with reach(run, nats, None) as client:
            await require_run(client, run)
            await client.stop_run(run)

    asyncio.run(ask())
    print(f"{run} was asked to stop")


async def require_run(client: Client, run: str) -> None:
    """Raise ConfigError, naming the runs there are, unless the run has a journal."""
    runs = await client.runs()
    if run not in runs:
        raise ConfigError(f"run {run!r} has no journal on this server; it has {', '.join(runs) or 'none'}")
