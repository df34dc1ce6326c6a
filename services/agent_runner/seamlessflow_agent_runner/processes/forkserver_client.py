"""One zygote seen from the runner: starting it, asking it for agents, noticing that it died.

Its other end, and what is said between the two, is ``zygote``. When it dies, its agents have died with it: whoever waits
for one of them is told.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from .forkserver import PACKET_BYTES
from .process_tree import end_group

# What to start and in which zygote, and the two ways in which that fails.


class NotStarted(Exception):
    """No agent could be started; the message says why, for people."""


class ZygoteLost(Exception):
    """The process that agents are forked from died, and they with it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start. ``argv`` None: the zygote's own entrypoint."""

    name: str
    argv: tuple[str, ...] | None
    keep_result: bool
    cwd: str
    environment: dict[str, str]
    memory_bytes: int

    def packet(self) -> bytes:
        """The zygote's order to start it."""
        return json.dumps(
            {
                "start": self.name, "argv": self.argv, "keep_result": self.keep_result, "cwd": self.cwd,
                "env": self.environment, "memory_bytes": self.memory_bytes,
            }
        ).encode()  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """Which zygote: what it imports, and the environment it imports it in."""

    entrypoint: str | None
    environment: tuple[tuple[str, str], ...] = field(default=())


T = TypeVar("T")
log = structlog.get_logger()

READY_SECONDS = 120.0
"""How long importing an entrypoint may take."""


@dataclass(eq=False, slots=True)
class Started:
    """A running agent. ``exited`` resolves to its exit code, or raises ZygoteLost."""

    name: str
    pid: int
    exited: asyncio.Future[int]
    zygote: Zygote

    def signal(self, number: int = signal.SIGKILL) -> None:
        """To the whole process group."""
        self.zygote.signal(self.name, number)


class Zygote:
    """One zygote process, seen from the runner."""

    def __init__(self, kind: Kind, link: socket.socket, process: asyncio.subprocess.Process) -> None:
        self._kind, self._link, self._process = kind, link, process
        self.num_threads = 0
        self.is_alive = True
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[int] = self._loop.create_future()
        self._starting: dict[str, asyncio.Future[Started]] = {}
        self._running: dict[str, Started] = {}
        self._loop.add_reader(link.fileno(), self._on_readable)

    @classmethod
    async def start(cls, kind: Kind) -> Zygote:
        """A zygote that is ready to fork. Raises NotStarted when its entrypoint cannot be imported."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PACKET_BYTES)
        arguments = [str(theirs.fileno()), str(os.getpid()), *([kind.entrypoint] if kind.entrypoint else [])]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "seamlessflow_agent_runner.processes.forkserver", *arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            env=dict(kind.environment), pass_fds=(theirs.fileno(),), start_new_session=True,
        )  # fmt: skip
        theirs.close()
        zygote = cls(kind, ours, process)
        try:
            async with asyncio.timeout(READY_SECONDS):
                zygote.num_threads = await zygote._ready
        except BaseException as wrong:
            await zygote.close()
            if isinstance(wrong, TimeoutError):
                raise NotStarted(f"importing {kind.entrypoint} took longer than {READY_SECONDS:.0f} s") from wrong
            raise
        log.info("zygote.ready", entrypoint=kind.entrypoint, pid=process.pid, num_threads=zygote.num_threads)
        return zygote

    async def launch(self, launch: Launch, fds: tuple[int, int, int]) -> Started:
        """Start an agent on three open descriptors (stdout, stderr, result), which stay ours. Raises NotStarted."""
        started: asyncio.Future[Started] = self._loop.create_future()
        self._starting[launch.name] = started
        try:
            await self._send(launch.packet(), fds)
            return await started
        finally:
            self._starting.pop(launch.name, None)

    async def _send(self, packet: bytes, fds: tuple[int, ...]) -> None:
        while self.is_alive:
            try:
                socket.send_fds(self._link, [packet], fds)
                return
            except BlockingIOError:
                await asyncio.sleep(0.01)
            except OSError as wrong:
                if len(packet) > PACKET_BYTES // 8:
                    raise NotStarted(
                        f"command line and environment are too long ({len(packet)} bytes); read the prompt from the file "
                        "in SEAMLESSFLOW_TASK instead of {prompt}"
                    ) from wrong
                break
        raise NotStarted("the process agents are forked from has just died")

    def signal(self, name: str, number: int) -> None:
        started = self._running.get(name)
        if started is None:
            return
        try:
            self._link.send(json.dumps({"signal": number, "id": name}).encode())
        except OSError:
            end_group(started.pid, number)

    def _on_readable(self) -> None:
        try:
            packet = self._link.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if packet:
            self._on_said(json.loads(packet))
        else:
            self._on_gone()

    def _on_said(self, said: dict[str, str | int]) -> None:
        match said:
            case {"ready": int(num_threads)}:
                _resolve(self._ready, num_threads)
            case {"failed": str(reason)}:
                _fail(self._ready, NotStarted(reason))
            case {"started": str(name), "pid": int(pid)}:
                self._on_started(Started(name, pid, self._loop.create_future(), self))
            case {"refused": str(name), "reason": str(reason)}:
                if name in self._starting:
                    _fail(self._starting[name], NotStarted(reason))
            case {"exited": str(name), "code": int(code)}:
                _resolve(self._running.pop(name).exited, code)

    def _on_started(self, started: Started) -> None:
        self._running[started.name] = started
        if started.name in self._starting:
            _resolve(self._starting[started.name], started)
        else:
            started.signal()  # whoever asked was cancelled meanwhile

    def _on_gone(self) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        self._loop.remove_reader(self._link.fileno())
        self._link.close()
        _fail(self._ready, NotStarted(f"the interpreter died while importing {self._kind.entrypoint}"))
        for pending in self._starting.values():
            _fail(pending, NotStarted("the process agents are forked from died"))
        for started in self._running.values():
            end_group(started.pid)  # the agent died with the zygote; what it had started did not
            _fail(started.exited, ZygoteLost("the process agents are forked from died"))
        self._running.clear()

    async def close(self) -> None:
        """End it and all its agents."""
        self._on_gone()
        try:
            async with asyncio.timeout(5):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], wrong: Exception) -> None:
    if not future.done():
        future.set_exception(wrong)
        future.exception()  # nobody may be waiting any more; that is no accident


# All zygotes of a runner: one per entrypoint and environment, started when first asked for.
#
# One bare zygote serves commands and entrypoints that want, or need, a new interpreter. Whatever died is started again
# when it is next asked for.


class Nursery:
    """All zygotes of a runner."""

    def __init__(self) -> None:
        self._zygotes: dict[Kind, Zygote] = {}
        self._locks: dict[Kind, asyncio.Lock] = {}

    async def zygote(self, kind: Kind) -> Zygote:
        """A live zygote of a kind, started when there is none. Raises NotStarted."""
        async with self._locks.setdefault(kind, asyncio.Lock()):
            zygote = self._zygotes.get(kind)
            if zygote is None or not zygote.is_alive:
                if zygote is not None:
                    log.warning("zygote.restarted", entrypoint=kind.entrypoint)
                    await zygote.close()
                zygote = self._zygotes[kind] = await Zygote.start(kind)
            return zygote

    async def close(self) -> None:
        """End all zygotes and their agents."""
        zygotes, self._zygotes = list(self._zygotes.values()), {}
        await asyncio.gather(*(zygote.close() for zygote in zygotes))
