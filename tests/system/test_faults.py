"""Kill any service in the middle of a run: it ends with the same accounting, and no agent saw an error."""

import signal
import tomllib

import pytest
import tomli_w

from .conftest import ROOT

pytestmark = [pytest.mark.system, pytest.mark.slow]


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


@pytest.mark.parametrize(
    "service", ["trajectory-manager", "scheduler", "rollout-worker", "trainer", "agent-runner", "nats-server"]
)
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
    assert "--resume paused" in first.text()
    assert first.pid_of("nats-server") is None

    summary = train(short_run, "paused", "--resume", "paused").finish(300)
    assert summary["reason"] == "completed"
    assert summary["steps"] == 8
    assert summary["ledger"]["tokens"]["in_flight"] == 0
    assert seamlessflow("ledger", "paused").returncode == 0
