"""Folders of agents: one for each runner, whoever shares the disk, and swept when its owner is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seamlessflow.errors import ConfigError
from seamlessflow_agent_runner.processes import work_dirs
from seamlessflow_agent_runner.processes.work_dirs import WorkDirs

CHECKOUT = Path(__file__).parents[3]
HOLDER = (
    "import sys, time, pathlib; from seamlessflow_agent_runner.processes.work_dirs import WorkDirs\n"
    "folder = WorkDirs.take(pathlib.Path(sys.argv[1]), sys.argv[2])\n"
    "(folder.path / 'home').mkdir(); print(folder.path, flush=True); time.sleep(60)"
)


def holder(work_dir: Path, instance: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(CHECKOUT), str(CHECKOUT / "shared")))}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(work_dir), instance], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline()
    return process


def test_containers_that_share_a_disk_do_not_touch_each_others_agents(tmp_path: Path) -> None:
    """Each is process 1 of its container, and none can see whether the other lives, but by the lock."""
    other = holder(tmp_path, "container-a-1")
    try:
        ours = WorkDirs.take(tmp_path, "container-b-1")

        assert ours.path.name == "agents-container-b-1"
        assert (tmp_path / "agents-container-a-1" / "home").is_dir()
        ours.remove()
        assert [path.name for path in tmp_path.iterdir()] == ["agents-container-a-1"]
    finally:
        other.kill()
        other.wait()


def test_what_a_killed_runner_left_is_removed(tmp_path: Path) -> None:
    """By the next one with another name; one with the same name, as a restarted container has, starts empty."""
    for left in ("first", "second"):
        killed = holder(tmp_path, left)
        killed.send_signal(signal.SIGKILL)
        killed.wait()

    again = WorkDirs.take(tmp_path, "second")

    assert [path.name for path in tmp_path.iterdir()] == ["agents-second"]
    assert not (again.path / "home").exists()
    again.remove()
    assert not list(tmp_path.iterdir())


def test_two_runners_of_one_name_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to set; the first one keeps its agents."""
    monkeypatch.setattr(work_dirs, "TAKE_SECONDS", 0.2)
    first = WorkDirs.take(tmp_path, "same/name")

    with pytest.raises(ConfigError, match="SEAMLESSFLOW_INSTANCE"):
        WorkDirs.take(tmp_path, "same/name")

    assert first.path == tmp_path / "agents-same-name" and first.path.is_dir()
    first.remove()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Here: a file where a folder should be."""
    (tmp_path / "work").touch()

    with pytest.raises(ConfigError, match="SEAMLESSFLOW_WORK_DIR"):
        WorkDirs.take(tmp_path / "work", "a")
