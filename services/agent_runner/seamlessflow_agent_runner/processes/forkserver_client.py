"""The runner's side of the forkservers: starts them, requests agents from them, and notices their deaths.

The other end and the protocol are in ``forkserver``. When a forkserver dies, its agents die with it: their ``exited`` raises
ForkserverLost.
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


class NotStarted(Exception):
    """No agent could be started; the message says why, for people."""


class ForkserverLost(Exception):
    """The process that agents are forked from died, and they with it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One agent to start. ``argv`` None: the forkserver's own entrypoint."""

    name: str
    argv: tuple[str, ...] | None
    keep_result: bool
    cwd: str
    environment: dict[str, str]
    memory_bytes: int

    def packet(self) -> bytes:
        """The request to start it, as JSON."""
        return json.dumps(
            {
                "start": self.name, "argv": self.argv, "keep_result": self.keep_result, "cwd": self.cwd,
                "env": self.environment, "memory_bytes": self.memory_bytes,
            }
        ).encode()  # fmt: skip


@dataclass(frozen=True, slots=True)
class ForkserverKind:
    """The identity of a forkserver: its entrypoint, and the environment it is imported in. None: a bare interpreter."""

    entrypoint: str | None
    environment: tuple[tuple[str, str], ...] = field(default=())


T = TypeVar("T")
log = structlog.get_logger()

READY_SECONDS = 120.0
"""How long importing an entrypoint may take."""


@dataclass(eq=False, slots=True)
class Started:
    """A running agent. ``exited`` resolves to its exit code, or raises ForkserverLost."""

    name: str
    pid: int
    exited: asyncio.Future[int]
    forkserver: ForkserverClient

    def signal(self, number: int = signal.SIGKILL) -> None:
        """To the whole process group."""
        self.forkserver.signal(self.name, number)


class ForkserverClient:
    """One forkserver's process as the runner sees it."""

    def __init__(self, kind: ForkserverKind, link: socket.socket, process: asyncio.subprocess.Process) -> None:
        self._kind, self._link, self._process = kind, link, process
        self.num_threads = 0
        self.is_alive = True
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[int] = self._loop.create_future()
        self._starting: dict[str, asyncio.Future[Started]] = {}
        self._running: dict[str, Started] = {}
        self._loop.add_reader(link.fileno(), self._on_readable)

    @classmethod
    async def start(cls, kind: ForkserverKind) -> ForkserverClient:
        """A forkserver that is ready to fork. Raises NotStarted when its entrypoint cannot be imported."""
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
        forkserver = cls(kind, ours, process)
        try:
            async with asyncio.timeout(READY_SECONDS):
                forkserver.num_threads = await forkserver._ready
        except BaseException as wrong:
            await forkserver.close()
            if isinstance(wrong, TimeoutError):
                raise NotStarted(f"importing {kind.entrypoint} took longer than {READY_SECONDS:.0f} s") from wrong
            raise
        log.info("zygote.ready", entrypoint=kind.entrypoint, pid=process.pid, num_threads=forkserver.num_threads)
        return forkserver

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
        """Send a signal to an agent's process group; none when it has exited."""
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
            self._on_message(json.loads(packet))
        else:
            self._on_gone()

    def _on_message(self, message: dict[str, str | int]) -> None:
        match message:
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
            started.signal()  # its launch was cancelled meanwhile

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
            end_group(started.pid)  # the agent died with the forkserver; its own children did not
            _fail(started.exited, ForkserverLost("the process agents are forked from died"))
        self._running.clear()

    async def close(self) -> None:
        """End the forkserver and all its agents."""
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
        future.exception()  # marks it as retrieved: its waiter may have been cancelled


class ForkserverPool:
    """All forkservers of a runner: one per entrypoint and environment, started, or started again, on demand.

    One bare forkserver serves commands, and entrypoints that want or need a new interpreter.
    """

    def __init__(self) -> None:
        self._forkservers: dict[ForkserverKind, ForkserverClient] = {}
        self._locks: dict[ForkserverKind, asyncio.Lock] = {}

    async def forkserver(self, kind: ForkserverKind) -> ForkserverClient:
        """A live forkserver of a kind. Raises NotStarted."""
        async with self._locks.setdefault(kind, asyncio.Lock()):
            forkserver = self._forkservers.get(kind)
            if forkserver is None or not forkserver.is_alive:
                if forkserver is not None:
                    log.warning("zygote.restarted", entrypoint=kind.entrypoint)
                    await forkserver.close()
                forkserver = self._forkservers[kind] = await ForkserverClient.start(kind)
            return forkserver

    async def close(self) -> None:
        """End all forkservers and their agents."""
        forkservers, self._forkservers = list(self._forkservers.values()), {}
        await asyncio.gather(*(forkserver.close() for forkserver in forkservers))
