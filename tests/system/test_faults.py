"""Kill any service in the middle of a run: it ends with the same accounting, and no agent saw an error."""

import json
import signal
import time
import tomllib
from pathlib import Path

import pytest
import tomli_w

from seamlessflow.cli.shutdown import SAME_SECONDS

from .conftest import ROOT

pytestmark = [pytest.mark.system, pytest.mark.slow]
SERVICES = ("trajectory-manager", "scheduler", "rollout-worker", "trainer", "agent-runner")


@pytest.fixture
def short_run(tmp_path):
    """The tiny demo, cut to a few steps: these tests are about accounting, not learning."""
    document = tomllib.loads((ROOT / "deploy" / "demo" / "tiny.toml").read_text())
    document["algorithm"]["steps"] = 8
    document["checkpoints"] = {"every_steps": 3}
    document["tasks"]["max_held_out"] = 5
    path = tmp_path / "short.toml"
    path.write_text(tomli_w.dumps(document))
    return path


@pytest.mark.parametrize("service", [*SERVICES, "nats-server"])
def test_a_run_survives_the_sudden_death_of_any_service(service, train, short_run):
    """After kill -9 in the middle, all steps are done, all tokens accounted for, and agents only fail with their runner."""
    training = train(short_run, "faulty")
    training.wait_for("step   4/8", 240)
    training.kill(service)
    summary = training.finish(300)

    assert summary["reason"] == "completed"
    assert summary["steps"] == 8
    assert summary["ledger"]["tokens"]["in_flight"] == 0
    assert summary["evaluation"]["after"]["num_episodes"] == 5
    statuses = set(summary["episodes_by_status"]) - {"completed", "run_ended"}
    assert statuses <= ({"runner_lost"} if service == "agent-runner" else set())
    assert summary["dead_letters"] == 0


def test_ctrl_c_ends_cleanly_and_resume_goes_on(train, short_run, seamlessflow):
    """The interrupted run says how to go on; the resumed one finishes with nothing lost and nothing done twice."""
    first = train(short_run, "paused")
    first.wait_for("step   4/8", 240)
    first.process.send_signal(signal.SIGINT)
    first.process.wait(60)
    assert first.process.returncode == 130, first.text()[-3000:]
    assert "stopping: services hand back what they hold" in first.text()
    assert "go on with: seamlessflow train --resume paused" in first.text()
    assert first.pid_of("nats-server") is None

    summary = train(short_run, "paused", "--resume", "paused").finish(300)
    assert summary["reason"] == "completed"
    assert summary["steps"] == 8
    assert summary["ledger"]["tokens"]["in_flight"] == 0
    assert seamlessflow("ledger", "paused").returncode == 0


def test_a_second_ctrl_c_ends_at_once_and_resume_goes_on(train, short_run):
    """Nothing is left running, as after kill -9, and as after kill -9 nothing is lost."""
    first = train(short_run, "hurried")
    first.wait_for("step   2/8", 240)
    pids = [pid for service in (*SERVICES, "nats-server") if (pid := first.pid_of(service)) is not None]
    first.process.send_signal(signal.SIGINT)
    first.wait_for("stopping:", 10)
    time.sleep(SAME_SECONDS + 0.1)  # sooner, it counts as the same Ctrl-C
    first.process.send_signal(signal.SIGINT)
    first.process.wait(5)
    assert first.process.returncode == 130, first.text()[-3000:]
    assert len(pids) == len(SERVICES) + 1
    deadline = time.monotonic() + 5
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)

    summary = train(short_run, "hurried", "--resume", "hurried").finish(300)
    assert summary["steps"] == 8
    assert summary["ledger"]["tokens"]["in_flight"] == 0
    steps = [json.loads(line) for line in (first.folder / "metrics.jsonl").read_text().splitlines()]
    assert len({(row["line"], row["step"]) for row in steps}) == len(steps)


def test_a_run_whose_agents_never_start_ends_and_says_why(train, tmp_path):
    """Every episode fails: the failure is shown, a few times, and the run does not go on for ever."""
    document = tomllib.loads((ROOT / "deploy" / "demo" / "tiny.toml").read_text())
    document["agents"][0] = {"env": "calculator", "command": ["sh", "-c", "echo no such file >&2; exit 3"]}
    document["evaluation"] = {"before": False, "after": False}
    path = tmp_path / "never.toml"
    path.write_text(tomli_w.dumps(document))
    training = train(path, "never")
    training.process.wait(300)

    assert training.process.returncode == 1, training.text()[-3000:]
    assert "agent_failed: exit code 3 ... no such file" in training.text()
    assert "not shown" in training.text() or "more since the last one shown" in training.text()
    assert json.loads((training.folder / "summary.json").read_text())["steps"] == 0


def is_running(pid):
    """Whether a process is there and is no zombie."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
