"""Processes are kept alive whatever goes wrong, and end when they are told to; Ctrl-C is answered at once."""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from seamlessflow.bus import nats_server
from seamlessflow.bus.nats_server import ServerKeeper
from seamlessflow.cli import shutdown
from seamlessflow.errors import Unavailable
from seamlessflow.local import supervisor
from seamlessflow.local.supervisor import Child, Supervisor, last_words

SECONDS = 20.0


async def until(condition):
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def child(folder, *argv, log="log"):
    return Child("it", list(argv), dict(os.environ), folder / log)


@pytest.fixture
def quick(monkeypatch):
    for module in (supervisor, nats_server):
        monkeypatch.setattr(module, "FIRST_BACKOFF_SECONDS", 0.01)


async def test_a_child_that_cannot_be_started_is_tried_again(tmp_path, quick):
    """The keeper says why, and does not die of it."""
    said = []
    kept = Supervisor([child(tmp_path, str(tmp_path / "program"))], lambda *words: said.append(" ".join(words)))
    kept.start()
    await until(lambda: len(said) > 1)
    (tmp_path / "program").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "program").chmod(0o755)
    await until(lambda: kept.children[0].running)
    await kept.stop()

    assert "it could not be started" in said[0]
    assert kept.children[0].last_exit == -signal.SIGTERM


async def test_a_stop_during_the_wait_for_a_restart_is_immediate(tmp_path, monkeypatch):
    """Nobody waits for a backoff to pass."""
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_SECONDS", 60.0)
    monkeypatch.setattr(supervisor, "MAX_BACKOFF_SECONDS", 60.0)
    said = []
    kept = Supervisor([child(tmp_path, "false")], lambda *words: said.append(" ".join(words)))
    kept.start()
    await until(lambda: said)
    async with asyncio.timeout(SECONDS):
        await kept.stop()

    assert "it died (exit code 1); starting again in 60.0 s" in said[0]


async def test_a_child_that_does_not_end_is_named_and_killed(tmp_path, monkeypatch):
    """A person who waits sees for whom."""
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.3)
    monkeypatch.setattr(supervisor, "SAY_WAITING_SECONDS", 0.05)
    said = []
    stubborn = child(tmp_path, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
    kept = Supervisor([stubborn], lambda *words: said.append(" ".join(words)))
    kept.start()
    await until(lambda: stubborn.log_path.is_file() and stubborn.log_path.read_text())
    await kept.stop()

    assert said[0] == "stopping: still waiting for it"
    assert said[-1].startswith("it killed: still there")
    assert stubborn.last_exit == -signal.SIGKILL


async def _deaths(tmp_path, script, *, progress=lambda: 0.0):
    """Keep a child that dies until its sixth death; what was said of it being hopeless."""
    hopeless, died = [], []
    kept = Supervisor(
        [child(tmp_path, "sh", "-c", script)], lambda *words: died.append(words), progress=progress,
        on_hopeless=lambda *words: hopeless.append(" ".join(words)),
    )  # fmt: skip
    kept.start()
    await until(lambda: len(died) > supervisor.HOPELESS_DEATHS)
    await kept.stop()
    return hopeless


LOGGED = json.dumps({"event": "engine.failed", "reason": "no kernel", "exception": "Traceback:\n  deep\nEngineError: bad head"})


async def test_a_child_that_dies_again_and_again_is_hopeless_and_its_last_words_say_why(tmp_path, monkeypatch, quick):
    """Said once; it is restarted all the same, until somebody decides."""
    monkeypatch.setattr(supervisor, "MAX_BACKOFF_SECONDS", 0.02)
    said = await _deaths(tmp_path, f"printf '%s\\n' '{LOGGED}'; echo 'Killed by us' >&2; exit 3")

    assert len(said) == 1
    assert said[0].startswith("it died (exit code 3), 5 times in a row, and nothing got on meanwhile. Last lines of ")
    assert said[0].endswith("\n  engine.failed  no kernel\n  EngineError: bad head\n  Killed by us")


async def test_deaths_between_which_something_gets_on_are_bad_luck(tmp_path, monkeypatch, quick):
    """As when memory is short: slow, and still a run."""
    monkeypatch.setattr(supervisor, "MAX_BACKOFF_SECONDS", 0.02)
    steps = itertools.count(1)

    assert await _deaths(tmp_path, "exit 1", progress=lambda: float(next(steps))) == []


def test_last_words_have_an_end(tmp_path):
    """A log of many long lines, or none at all."""
    log = tmp_path / "log"
    log.write_text("\n".join(f"{number} " + "x" * 10_000 for number in range(20)))

    assert [line.split()[0] for line in last_words(log)] == ["14", "15", "16", "17", "18", "19"]
    assert all(len(line) < 310 for line in last_words(log))
    assert last_words(tmp_path / "none") == []


class Server:
    """An embedded server whose restarts fail twice and take their time."""

    def __init__(self):
        self.running, self.restarts, self.url = False, 0, "nats://h:1"

    def start(self):
        self.running = True

    def stop(self):
        self.running = False

    def restart(self):
        self.restarts += 1
        time.sleep(0.1)
        if self.restarts < 3:
            raise Unavailable("nats-server ended at once")
        self.running = True


async def test_a_server_that_cannot_be_restarted_is_tried_again_beside_everything_else(quick):
    """The loop, which the server's clients share, goes on meanwhile."""
    server, said, turns = Server(), [], 0
    keeper = ServerKeeper(server, lambda *words: said.append(" ".join(words)))
    await keeper.start()
    server.running = False
    async with asyncio.timeout(SECONDS):
        while not server.running:
            turns += 1
            await asyncio.sleep(0.005)
    await keeper.stop()

    assert server.restarts == 3
    assert turns > 20
    assert sum("cannot be restarted" in line for line in said) == 2
    assert not server.running


WAITS = """
import asyncio
from seamlessflow.cli.shutdown import Interrupt

async def main():
    interrupt = Interrupt(lambda line: print(line, flush=True), "tidying up")
    print("ready", flush=True)
    await interrupt.requested.wait()
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_ctrl_c_is_answered_at_once_and_a_second_one_ends():
    """Even while the first one's orderly end takes long. The same signal twice at once is one."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopping: tidying up (once more: at once)\n"
    process.send_signal(signal.SIGINT)  # as `timeout` does: to its child, then to its child's group
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(shutdown.SAME_SECONDS)
    process.send_signal(signal.SIGINT)

    assert process.wait(SECONDS) == 130
    assert process.stdout.read() == "killed\n"
