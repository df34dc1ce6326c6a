"""``up`` and ``train`` with everything on this machine, over services that only wait: the order of starting and ending."""

import json
import os
import signal
import stat
import time

import pytest

from seamlessflow.bus.nats_server import EmbeddedServer
from tests.cli.cli_builders import SECONDS

SERVICES = ("scheduler", "trajectory_manager", "agent_runner", "rollout_worker", "trainer")
LOGS = ["agent-runner", "rollout-worker-0", "scheduler", "trainer", "trajectory-manager"]
WAITS = """
import os, signal
assert "@" in os.environ["SEAMLESSFLOW_NATS_URL"]
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready")
signal.sigwait({signal.SIGTERM})
print("ended in order")
"""
RUN = """
[model]
name = "tiny-calculator"
[[agents]]
env = "a"
entrypoint = "my_agent:run"
[algorithm]
steps = 3
"""


@pytest.fixture
def checkout(tmp_path):
    """A working directory whose services wait for SIGTERM; it comes before what is installed."""
    for service in SERVICES:
        folder = tmp_path / f"seamlessflow_{service}"
        folder.mkdir()
        (folder / "__main__.py").write_text(WAITS)
        (folder / "__init__.py").touch()  # else the installed ones, further down the path, win
    (tmp_path / "my_agent.py").write_text("def run(task): ...\n")
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def those_that_said(words, folder):
    return sorted(path.stem for path in (folder / "logs").glob("*.log") if words in path.read_text())


def wait_for_services(folder):
    deadline = time.monotonic() + SECONDS
    while those_that_said("ready", folder) != LOGS:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_up_tells_how_to_reach_it_without_telling_the_password(start, checkout):
    """Ctrl-C ends the services, then the server; the address stays, for its owner only."""
    command = start(checkout, "up", "--slices", "1")
    command.wait_for("Five services are up. Publish a run with: seamlessflow train CONFIG --nats runs/up")
    address = json.loads((checkout / "runs" / "up" / "up.json").read_text())
    wait_for_services(checkout / "runs" / "up")
    command.process.send_signal(signal.SIGINT)
    code, said = command.end()

    assert code == 0
    assert "stopping: services hand back what they hold" in said
    assert address["nats_url"].partition("//")[2].partition("@")[0] not in said
    assert address["pid"] == command.process.pid
    kept = checkout / "runs" / "up" / "up.json"
    assert json.loads(kept.read_text())["pid"] == 0
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert those_that_said("ended in order", checkout / "runs" / "up") == LOGS


def test_train_is_suspended_and_resumed(start, checkout):
    """Once: in order, with how to go on. The request is in the journal before anything starts, so resuming needs no file."""
    first = start(checkout, "train", "run.toml", "--name", "near", "--slices", "1")
    first.wait_for("run near in runs/near/")
    wait_for_services(checkout / "runs" / "near")
    first.process.send_signal(signal.SIGINT)
    code, said = first.end()

    assert code == 130, said
    assert "stopping: services hand back what they hold" in said
    assert "suspended at step 0, of which 0 are saved; go on with: seamlessflow train --resume near" in said
    assert those_that_said("ended in order", checkout / "runs" / "near") == LOGS
    assert json.loads((checkout / "runs" / "near" / "summary.json").read_text())["reason"] == "not ended"
    EmbeddedServer(checkout / "runs" / "near" / "nats").start().stop()  # nothing of it was left running
    code, said = start(checkout, "status", "near").end()
    assert code == 0, said
    assert "near suspended before it began: nobody serves it; go on with: seamlessflow train --resume near" in said

    (checkout / "run.toml").unlink()
    (checkout / "runs" / "near" / "config.toml").unlink()
    again = start(checkout, "train", "--resume", "near", "--slices", "1")
    again.wait_for("run near in runs/near/")
    os.kill(again.process.pid, signal.SIGINT)
    again.wait_for("stopping:")
    code, said = again.end()
    assert code == 130, said
    assert "steps = 3" in (checkout / "runs" / "near" / "config.toml").read_text()


DIES = """
import sys
sys.exit("EngineError: this model has no head")
"""


def test_train_suspends_a_run_whose_service_dies_at_each_start(start, checkout):
    """It says whose death and its last words, ends everything in order with exit code 1, and how to go on."""
    (checkout / "seamlessflow_rollout_worker" / "__main__.py").write_text(DIES)
    command = start(checkout, "train", "run.toml", "--name", "broken", "--slices", "1")
    code, said = command.end()

    assert code == 1, said
    assert said.count("rollout-worker-0 died (exit code 1), 5 times in a row, and nothing got on meanwhile.") == 1
    assert "\n  EngineError: this model has no head\n" in said
    assert said.endswith("go on with: seamlessflow train --resume broken\n")
    others = [name for name in LOGS if name != "rollout-worker-0"]
    assert those_that_said("ended in order", checkout / "runs" / "broken") == others
    assert json.loads((checkout / "runs" / "broken" / "summary.json").read_text())["reason"] == "not ended"
