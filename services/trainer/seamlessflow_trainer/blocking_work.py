"""Blocking work beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

import structlog

from seamlessflow.errors import BusClosed, Unavailable

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")
RETRY_SECONDS = 2.0


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run in a worker thread. Cancelled, it still waits for the thread: nobody computes on behind our back."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    work.add_done_callback(_mark_failure_retrieved)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():  # however often we are cancelled
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        raise


def _mark_failure_retrieved(work: asyncio.Future[T]) -> None:
    """Mark its failure as seen: whoever cancelled us does not want to know, and asyncio would complain."""
    if not work.cancelled():
        work.exception()


async def in_thread_with_retry(what: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """``in_thread``, again and again while something is Unavailable (a full or absent store), saying so each time."""
    while True:
        try:
            return await in_thread(function, *args, **kwargs)
        except BusClosed:
            raise
        except Unavailable as wrong:
            log.warning(f"{what}.waits", reason=str(wrong), again_in_seconds=RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)
