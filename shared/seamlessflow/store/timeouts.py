"""Calls to a store within time limits: nothing here waits for ever for a server that hangs.

    filesystem                                       after its time a call is
    asynchronous inside (s3, gs, az, http)           cancelled, and its connection closed
    any other (folders, mounts, memory), open files  left behind in its thread, without a waiter

A thread in a system call cannot be stopped, so calls that are left behind are counted: while there are as many as allowed,
the next ones fail soon, and a mount that hangs does not fill the process with threads. While others are on their way,
and in time, a call waits for one of them to end.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from fsspec.asyn import FSTimeoutError, sync

MOST_AT_ONCE = 64
"""Calls in threads of their own, those left behind included: several downloads of eight reads each."""

HOPELESS_SECONDS = 0.5
"""How long a call waits for its place where all are left behind."""

IDLE_SECONDS = 5.0
"""How long such a thread waits for another call: starting one takes longer than most local calls."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreTimeouts:
    """How long a call may take."""

    call_seconds: float = 30.0
    """Whatever it moves. s3fs waits 5 s for a connection and 15 s for an answer, and asks again: this is for all of that."""
    bytes_per_second: float = 1e6
    """More time for what it moves: a store slower than this is none that weights can come from."""

    def seconds(self, num_bytes: int = 0) -> float:
        """For a call that moves so many bytes."""
        return self.call_seconds + num_bytes / self.bytes_per_second


class StoreCalls:
    """Makes calls to one store, from any thread."""

    def __init__(self, most_at_once: int = MOST_AT_ONCE) -> None:
        self._places = threading.BoundedSemaphore(most_at_once)
        self._most = most_at_once
        self._idle: list[_Worker] = []
        self._left_behind: set[_Call[Any]] = set()

    def call(self, fs: Any, name: str, *arguments: object, seconds: float, **options: object) -> Any:
        """``fs.name(...)``. Raises what that raises; TimeoutError when it is not done in time."""
        coroutine = getattr(fs, f"_{name}", None) if getattr(fs, "async_impl", False) else None
        if not inspect.iscoroutinefunction(coroutine):
            return self.within(seconds, partial(getattr(fs, name), *arguments, **options))
        try:
            return sync(fs.loop, coroutine, *arguments, timeout=seconds, **options)
        except FSTimeoutError as wrong:
            raise TimeoutError(f"no answer within {seconds:.3g} s") from wrong

    def within(self, seconds: float, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises, done in another thread. Raises TimeoutError."""
        is_hopeless = len(self._left_behind) >= self._most
        if not self._places.acquire(timeout=min(seconds, HOPELESS_SECONDS) if is_hopeless else seconds):
            raise TimeoutError(f"{self._most} earlier calls have not come back")
        call = _Call(work)
        self._worker().calls.put(call)
        if not call.done.wait(seconds):
            self._left_behind.add(call)
            if call.done.is_set():  # just now; else whoever makes it looks here after that
                self._left_behind.discard(call)
            raise TimeoutError(f"no answer within {seconds:.3g} s")
        return call.outcome()

    def _worker(self) -> _Worker:
        """One that does nothing, or a new one. Raises RuntimeError where this process may have no more threads."""
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return _Worker(self._idle, self._end)
        except RuntimeError:
            self._places.release()
            raise

    def _end(self, call: _Call[Any]) -> None:
        self._places.release()
        call.done.set()
        self._left_behind.discard(call)


class _Worker:
    """A thread that makes one call after the other, and is gone when there was none for a while."""

    def __init__(self, idle: list[_Worker], at_end: Callable[[_Call[Any]], None]) -> None:
        self.calls: SimpleQueue[_Call[Any]] = SimpleQueue()
        self._idle, self._at_end = idle, at_end
        threading.Thread(target=self._run, daemon=True, name="store-call").start()  # daemon: no exit waits for it

    def _run(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=IDLE_SECONDS)
            except Empty:
                try:
                    self._idle.remove(self)
                    return
                except ValueError:
                    continue  # another thread took this one just now: a call is coming
            call.run()
            self._idle.append(self)
            self._at_end(call)
            del call  # and what it brought


class _Call(Generic[T]):
    """Work for another thread, and what came of it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._failure: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as wrong:  # whoever waits raises it
            self._failure = wrong

    def outcome(self) -> T:
        if self._failure is not None:
            raise self._failure
        return self._results[0]
