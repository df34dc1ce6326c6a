"""Tasks that agents elsewhere bring with them: each becomes a TaskSubmitted."""

from __future__ import annotations

import asyncio
import time

from pydantic import ValidationError

from seamlessflow.contracts import TaskSubmitted
from seamlessflow.errors import BadInput, SeamlessFlowError
from seamlessflow.runtime import Speaker

from .asks import Ask, NoEpisode
from .gateway.errors import bad_request


async def say_task(speaker: Speaker, ask: Ask, run: str, env: str, task: str, deadline: float) -> None:
    """Publish what is asked for as ``task``; again under the same name changes nothing. ``deadline``: of the monotonic clock.

    Raises ApiError 400, and NoEpisode when the journal does not answer in time.
    """
    try:
        said = TaskSubmitted(run=run, task=task, env=env, prompt=ask.prompt or "", data=dict(ask.data or {}))
        async with asyncio.timeout(max(1.0, deadline - time.monotonic())):
            await speaker.say(said)
    except ValidationError as wrong:
        raise bad_request("; ".join(f"{e['loc'][0]}: {e['msg']}" for e in wrong.errors()), "task") from wrong
    except BadInput as wrong:
        raise bad_request(f"this task cannot be published: {wrong}") from wrong
    except (SeamlessFlowError, TimeoutError) as wrong:
        raise NoEpisode(f"task {task} may not have been published: the journal does not answer", task) from wrong
