"""One agent process from start to end, within its limits. Every way out leaves no process behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from seamlessflow_agent_runner.episodes.deadline import OwnTime, UsedUp, until

from .forkserver_client import Launch, NotStarted, Started, Zygote, ZygoteLost
from .memory_limit import MemoryWatch

CHUNK_BYTES = 1 << 16
STDERR_TAIL_BYTES = 4096


class Cause(StrEnum):
    """Why an agent process ended."""

    EXIT = "exit"
    """By itself; see the exit code."""
    DEADLINE = "deadline"
    """Its own time was used up."""
    OVERALL = "overall"
    """All time was used up, waiting for answers included."""
    MEMORY = "memory"
    OUTPUT = "output"
    STOPPED = "stopped"
    """The runner was told to stop it."""
    LOST = "lost"
    """The process it was forked from died."""


@dataclass(frozen=True, slots=True)
class Limits:
    deadline_seconds: float
    """Of the agent's own time, see ``own_time``."""
    overall_seconds: float
    """Of all time, waiting for answers included."""
    memory_bytes: int
    output_bytes: int
    kill_grace_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended. ``exit_code`` is negative for a signal and None when nobody could tell."""

    cause: Cause
    exit_code: int | None
    stdout: bytes
    stderr_tail: bytes
    result: dict[str, Any] | None
    wall_seconds: float


class Pipe:
    """Takes what a child writes, never more than allowed: beyond the limit it reads no further and says so."""

    def __init__(self, keep_tail: int | None = None) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.content = bytearray()
        self._keep_tail = keep_tail
        self._is_open = True

    def take(self) -> int | None:
        """Read what is there; how many bytes, 0 for nothing now, None at the end."""
        try:
            chunk = os.read(self.reader, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        self.content += chunk
        if self._keep_tail is not None:
            del self.content[: -self._keep_tail]
        return len(chunk) or None

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        if self._is_open:
            self._is_open = False
            os.close(self.reader)


class AgentProcess:
    """Runs one launch to its end. ``stop`` ends it early from outside. ``time``: stands still while it waits for answers."""

    def __init__(self, limits: Limits, memory: MemoryWatch, time: OwnTime) -> None:
        self._limits, self._memory, self._time = limits, memory, time
        self._loop = asyncio.get_running_loop()
        self._breach: asyncio.Future[Cause] = self._loop.create_future()
        self._pipes = (Pipe(), Pipe(STDERR_TAIL_BYTES), Pipe())
        self._num_bytes = 0

    def stop(self, cause: Cause = Cause.STOPPED) -> None:
        """End it now; the first cause counts."""
        if not self._breach.done():
            self._breach.set_result(cause)

    async def run(self, zygote: Zygote, launch: Launch) -> Ending:
        """Start it and wait for its end. Raises NotStarted."""
        began = time.monotonic()
        try:
            stdout, stderr, result = self._pipes
            started = await zygote.launch(launch, (stdout.writer, stderr.writer, result.writer))
            try:
                for pipe in self._pipes:
                    pipe.close_writer()
                    self._loop.add_reader(pipe.reader, self._on_output, pipe)
                self._memory.watch(started.pid, self._limits.memory_bytes, lambda used: self.stop(Cause.MEMORY))
                cause, code = await self._until_end(started)
            finally:
                started.signal(signal.SIGKILL)  # no-op when it is gone
                self._memory.forget(started.pid)
                for pipe in self._pipes:
                    self._loop.remove_reader(pipe.reader)
            cause = self._drain(cause)
            said = _parsed(bytes(result.content))
            return Ending(cause, code, bytes(stdout.content), bytes(stderr.content), said, time.monotonic() - began)
        finally:
            for pipe in self._pipes:
                pipe.close()

    async def _until_end(self, started: Started) -> tuple[Cause, int | None]:
        await self._until_breach(started)
        if started.exited.done():
            return _exit_of(started)
        cause = self._breach.result()
        if cause in (Cause.DEADLINE, Cause.OVERALL, Cause.STOPPED):
            started.signal(signal.SIGTERM)
            await asyncio.wait({started.exited}, timeout=self._limits.kill_grace_seconds)
        started.signal(signal.SIGKILL)
        await asyncio.wait({started.exited})
        return cause, _exit_of(started)[1]

    async def _until_breach(self, started: Started) -> None:
        """Until it exits or breaks a limit, time limits included."""
        used_up = await until(
            {started.exited, self._breach},
            self._time,
            own_seconds=self._limits.deadline_seconds,
            overall_seconds=self._limits.overall_seconds,
        )
        if used_up is not None:
            self.stop(Cause.DEADLINE if used_up is UsedUp.OWN else Cause.OVERALL)

    def _on_output(self, pipe: Pipe) -> None:
        taken = pipe.take()
        if taken is None:
            self._loop.remove_reader(pipe.reader)
            return
        self._num_bytes += taken
        if self._num_bytes > self._limits.output_bytes:
            self._loop.remove_reader(pipe.reader)
            self.stop(Cause.OUTPUT)

    def _drain(self, cause: Cause) -> Cause:
        """What was still in the pipes. Not to the end of file: a process that got away may hold them open."""
        for pipe in self._pipes:
            while cause is Cause.EXIT and (taken := pipe.take()):
                self._num_bytes += taken
                if self._num_bytes > self._limits.output_bytes:
                    cause = Cause.OUTPUT
        return cause


def _exit_of(started: Started) -> tuple[Cause, int | None]:
    if isinstance(started.exited.exception(), ZygoteLost):
        return Cause.LOST, None
    return Cause.EXIT, started.exited.result()


def _parsed(result: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(result)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


__all__ = ["AgentProcess", "Cause", "Ending", "Limits", "NotStarted"]
