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

from .forkserver_client import ForkserverClient, ForkserverLost, Launch, NotStarted, Started
from .memory_limit import MemoryWatch

CHUNK_BYTES = 1 << 16
STDERR_TAIL_BYTES = 4096


class Cause(StrEnum):
    """Reason for the end of an agent process."""

    EXIT = "exit"
    """It exited by itself; see the exit code."""
    DEADLINE = "deadline"
    """Its own time was used up."""
    OVERALL = "overall"
    """All time was used up, waiting for answers included."""
    MEMORY = "memory"
    """It used more memory than allowed."""
    OUTPUT = "output"
    """It printed more than allowed."""
    STOPPED = "stopped"
    """The runner stopped it."""
    LOST = "lost"
    """The process it was forked from died."""


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Limits of one agent process."""

    deadline_seconds: float
    """Limit of the agent's own time, see ``deadline``."""
    overall_seconds: float
    """Limit of total time, waiting for answers included."""
    memory_bytes: int
    output_bytes: int
    kill_grace_seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of an agent process. ``exit_code``: negative for a signal; None: unknown, as its forkserver died."""

    cause: Cause
    exit_code: int | None
    stdout: bytes
    stderr_tail: bytes
    result: dict[str, Any] | None
    wall_seconds: float


class Pipe:
    """A pipe that a child writes to. ``keep_tail``: keep only so many of the last bytes; None: keep all."""

    def __init__(self, keep_tail: int | None = None) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.content = bytearray()
        self._keep_tail = keep_tail
        self._is_open = True

    def take(self) -> int | None:
        """Read the available bytes: their number, 0 for none now, None at end of file."""
        try:
            chunk = os.read(self.reader, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        self.content += chunk
        if self._keep_tail is not None:
            del self.content[: -self._keep_tail]
        return len(chunk) or None

    def close_writer(self) -> None:
        """Close this process's copy of the writing end. Idempotent."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        """Close both ends. Idempotent."""
        self.close_writer()
        if self._is_open:
            self._is_open = False
            os.close(self.reader)


class AgentProcess:
    """Runs one launch to its end; every way out leaves no process. ``time``: the agent's own time."""

    def __init__(self, limits: AgentLimits, memory: MemoryWatch, time: OwnTime) -> None:
        self._limits, self._memory, self._time = limits, memory, time
        self._loop = asyncio.get_running_loop()
        self._breach: asyncio.Future[Cause] = self._loop.create_future()
        self._pipes = (Pipe(), Pipe(STDERR_TAIL_BYTES), Pipe())
        self._num_bytes = 0

    def stop(self, cause: Cause = Cause.STOPPED) -> None:
        """End it now; the first cause counts."""
        if not self._breach.done():
            self._breach.set_result(cause)

    async def run(self, forkserver: ForkserverClient, launch: Launch) -> ProcessEnd:
        """Start it and wait for its end. Raises NotStarted."""
        began = time.monotonic()
        try:
            stdout, stderr, result = self._pipes
            started = await forkserver.launch(launch, (stdout.writer, stderr.writer, result.writer))
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
            report = _parsed(bytes(result.content))
            return ProcessEnd(cause, code, bytes(stdout.content), bytes(stderr.content), report, time.monotonic() - began)
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
        """Read the rest of the pipes; not to end of file, as an escaped process may hold them open."""
        for pipe in self._pipes:
            while cause is Cause.EXIT and (taken := pipe.take()):
                self._num_bytes += taken
                if self._num_bytes > self._limits.output_bytes:
                    cause = Cause.OUTPUT
        return cause


def _exit_of(started: Started) -> tuple[Cause, int | None]:
    if isinstance(started.exited.exception(), ForkserverLost):
        return Cause.LOST, None
    return Cause.EXIT, started.exited.result()


def _parsed(result: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(result)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


__all__ = ["AgentLimits", "AgentProcess", "Cause", "NotStarted", "ProcessEnd"]
