"""A run whose checkpoint is damaged while it is suspended: the command reports it within seconds, and goes on as it is told."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Training
from .short_runs import short_run

pytestmark = [pytest.mark.slow, pytest.mark.system]


def newest_checkpoint(folder: Path) -> Path:
    found = (folder / "runs/held/store/held/checkpoints").glob("*-*-*/manifest.json")
    return max((path.parent for path in found), key=lambda path: path.name)


def test_a_damaged_checkpoint_is_on_the_screen_and_a_rollback_ends_the_run_well(
    tmp_path: Path, train: Callable[..., Training], seamlessflow: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Suspended after its second commit, damaged, resumed (held, exit code 1), shown, verified, rolled back, completed."""
    algorithm = {"steps": 4, "groups_per_step": 4, "group_size": 4}
    config = short_run(tmp_path, algorithm=algorithm, checkpoints={"every_steps": 1, "keep": 3})
    training = train(config, "held")
    training.wait_for("step   3/4", 240)
    training.process.send_signal(signal.SIGINT)
    training.process.wait(60)
    damaged = newest_checkpoint(tmp_path) / "model.safetensors"
    damaged.chmod(0o644)
    damaged.write_bytes(b"rubbish" + damaged.read_bytes()[7:])

    began = time.monotonic()
    resumed = seamlessflow("train", "--resume", "held")
    took_seconds = time.monotonic() - began
    shown = seamlessflow("status", "held")
    verified = seamlessflow("checkpoints", "verify", "held")
    listed = seamlessflow("checkpoints", "list", "held")

    assert resumed.returncode == 1 and "is held" in resumed.stdout and "3 reads agree" in resumed.stdout, resumed.stdout
    assert took_seconds < 90
    assert "held:" in shown.stdout and damaged.name in shown.stdout
    assert verified.returncode == 1 and damaged.name in verified.stdout and listed.returncode == 0
    step = int(newest_checkpoint(tmp_path).name[:8]) - 1
    ended = seamlessflow("train", "--resume", "held", "--checkpoint", str(step))
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-2000:]
    assert f"went back to the checkpoint of step {step}" in ended.stdout and "completed" in ended.stdout
    assert seamlessflow("ledger", "held").returncode == 0
