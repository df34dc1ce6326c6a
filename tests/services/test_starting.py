"""Settings that cannot be used are said in a line, not in a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest


def started(service: str, **settings: str) -> subprocess.Popen[str]:
    known = {"SEAMLESSFLOW_NATS_URL": "nats://127.0.0.1:9", "SEAMLESSFLOW_STORE_URL": "memory://", **settings}
    command = [sys.executable, "-m", f"seamlessflow_{service}"]
    return subprocess.Popen(command, env=os.environ | known, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("service", ["scheduler", "agent_runner", "trajectory_manager"])
def test_a_wrong_setting_is_named(service: str) -> None:
    """With what is expected, and without what was given: it may be a secret."""
    process = started(service, SEAMLESSFLOW_METRICS_PORT="secret")

    _, said = process.communicate(timeout=60)

    assert process.returncode == 1 and "Traceback" not in said and "secret" not in said
    assert f"{service.replace('_', '-')} cannot start:\n  SEAMLESSFLOW_METRICS_PORT: " in said


def test_ctrl_c_while_it_waits_for_its_server_is_quiet() -> None:
    """No server is there yet, so there is nothing to leave in order."""
    process = started("scheduler")
    assert process.stderr is not None
    first = process.stderr.readline()  # what it waits for
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)

    _, said = process.communicate(timeout=30)

    assert process.returncode == 130 and "Traceback" not in first + said
