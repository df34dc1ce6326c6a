"""An event loop whose clock jumps to the next timer, and blocking work that runs in its thread. Not a test.

A model test plays thousands of orders: no order may cost real seconds, and each has to be the same when it is played again.
So timers cost nothing, and ``asyncio.to_thread`` runs its function at once, in a greenlet of the loop's own thread. Wherever
that function must wait (``wait_inline``) it is put aside, and the loop goes on with others.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from greenlet import getcurrent, greenlet

import seamlessflow.weights.download
import seamlessflow.weights.partial_file
import seamlessflow.weights.stored_file
import seamlessflow_trainer.data.batch_feed

_real_monotonic, _real_time = time.monotonic, time.time
EPOCH = 1_800_000_000.0
"""Unix seconds when a loop's clock stands at 0."""


MOST_ROUNDS = 50_000
"""Rounds of the loop without a timer; more than any order has at one moment of the clock."""


class Stuck(AssertionError):
    """Every task waits, and there is no timer that could end it; or some go on for ever, and the clock stands still."""


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """Without a selector: nothing comes from outside. Begins at second 1000, since clocks are seldom 0."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0
        self._rounds = 0
        self._selector = self

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """What the base class asks its selector: wait for so long. Nobody waits here."""
        if timeout is None:
            raise Stuck("no task can go on, and no timer is set")
        self._rounds = 0 if timeout > 0 else self._rounds + 1
        if self._rounds > MOST_ROUNDS:
            raise Stuck("some task goes on and on without waiting")
        self._now += max(0.0, timeout)
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


async def to_thread(function: Callable[..., Any], /, *args: object, **kwargs: object) -> Any:
    """As asyncio's, in the loop's own thread."""
    worker = greenlet(partial(function, *args, **kwargs))
    worker.gr_context = contextvars.copy_context()
    came = worker.switch()
    while not worker.dead:
        try:
            answer = await came
        except BaseException as wrong:
            came = worker.throw(wrong)
        else:
            came = worker.switch(answer)
    return came


def wait_inline(awaited: Awaitable[Any]) -> Any:
    """Wait inside a function that ``to_thread`` runs."""
    loop_side = getcurrent().parent
    assert loop_side is not None, "blocking work was done in the event loop itself"
    return loop_side.switch(awaited)


class InlineQueue:
    """``queue.SimpleQueue``, as far as a feed needs it."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._news = asyncio.Event()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._news.set()

    def get(self) -> Any:
        while not self._items:
            self._news.clear()
            wait_inline(self._news.wait())
        return self._items.popleft()


class InlineExecutor:
    """``ThreadPoolExecutor``: does at once what it is given."""

    def __init__(self, max_workers: int = 1) -> None:
        pass

    def __enter__(self) -> InlineExecutor:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *args: object) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*args))
        except Exception as wrong:
            done.set_exception(wrong)
        return done

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        return [function(item) for item in items]


def _monotonic() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return _real_monotonic()


def _time() -> float:
    try:
        return EPOCH + asyncio.get_running_loop().time()
    except RuntimeError:
        return _real_time()


@contextmanager
def threads_inline() -> Iterator[None]:
    """While the block runs no service starts a thread, and clocks are those of the running loop."""
    pools = (seamlessflow.weights.stored_file, seamlessflow.weights.download, seamlessflow.weights.partial_file)
    with (
        patch.object(asyncio, "to_thread", to_thread),
        patch.object(time, "monotonic", _monotonic),
        patch.object(time, "time", _time),
        patch.object(seamlessflow_trainer.data.batch_feed, "SimpleQueue", InlineQueue),
        patch.object(seamlessflow.weights.download, "PAUSES_SECONDS", (0.0,)),
        patch.object(pools[0], "ThreadPoolExecutor", InlineExecutor),
        patch.object(pools[1], "ThreadPoolExecutor", InlineExecutor),
        patch.object(pools[2], "ThreadPoolExecutor", InlineExecutor),
    ):
        yield
