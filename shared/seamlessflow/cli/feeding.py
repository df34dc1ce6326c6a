"""Publishing a run's own tasks, a few steps ahead of what was admitted."""

from __future__ import annotations

import asyncio

from ..client import Client
from ..run_config import RunConfig
from ..run_view import RunView
from ..task_sources import Questions, evaluation_tasks, training_task, training_task_id

AHEAD_STEPS = 3
"""Training tasks are published this many steps ahead of what was admitted."""
LOOK_SECONDS = 0.2


async def feed(client: Client, run: str, config: RunConfig, questions: Questions, view: RunView) -> None:
    """Until cancelled. ``view`` has seen the whole journal: what is in there already is not published again.

    With ``tasks.source = "queue"`` users feed the run instead, and this returns at once.
    """
    if not questions.training or view.ended is not None:
        return
    for task in evaluation_tasks(run, config, questions):
        if task.task not in view.tasks:
            await client.submit(task)
    ahead = AHEAD_STEPS * config.algorithm.groups_per_step
    published = 0
    while view.ended is None:
        while published < view.groups_admitted + ahead:
            if training_task_id(published) not in view.tasks:
                await client.submit(training_task(run, config, questions, published))
            published += 1
        await asyncio.sleep(LOOK_SECONDS)
