"""Answers that are waited for, by the token that each of them names.

Not nats-py's own requests: they wait by ``asyncio.wait_for``, which before Python 3.12 swallows a cancellation that meets the
answer, so that a loop which asks the server would go on for ever though its service is to end; and what they do around it
is a fifth of the CPU time of storing a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Awaited(Generic[T]):
    """``T``: an answer."""

    def __init__(self) -> None:
        self._num_asked = 0
        self._waiting: dict[str, asyncio.Future[T]] = {}

    @contextmanager
    def one(self, timeout_seconds: float) -> Iterator[tuple[str, asyncio.Future[T]]]:
        """A token of its own, and what will be the answer. Awaiting that raises TimeoutError."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._num_asked += 1
        token = str(self._num_asked)
        self._waiting[token] = answer
        limit = loop.call_later(timeout_seconds, _fail, answer, "it did not come")
        try:
            yield token, answer
        finally:
            limit.cancel()
            del self._waiting[token]

    def came(self, token: str, answer: T) -> None:
        """Nothing, where nobody waits for it any more."""
        waiting = self._waiting.get(token)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def fail_all(self, reason: str) -> None:
        for waiting in list(self._waiting.values()):
            _fail(waiting, reason)


def _fail(waiting: asyncio.Future[T], reason: str) -> None:
    if not waiting.done():
        waiting.set_exception(TimeoutError(reason))
