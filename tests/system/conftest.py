"""System tests run the real command: real services, a real nats-server, a real (small) model, real agents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Training:
    """A ``seamlessflow train`` that runs beside the test."""

    process: subprocess.Popen[str]
    folder: Path
    output: Path

    def pid_of(self, service: str) -> int | None:
        """Process id of a service (or ``nats-server``) that this training started."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            ours = int(status[1]) == self.process.pid
            named = (
                words[0].endswith("nats-server")
                if service == "nats-server"
                else f"services.{service.replace('-', '_')}" in words
            )
            if ours and named:
                return int(entry.name)
        return None

    def kill(self, service: str) -> None:
        """SIGKILL, as a power cut would."""
        pid = self.pid_of(service)
        assert pid is not None, f"{service} is not running: {self.text()[-2000:]}"
        os.kill(pid, signal.SIGKILL)

    def text(self) -> str:
        return self.output.read_text()

    def wait_for(self, words: str, seconds: float) -> None:
        """Until the screen shows the words."""
        deadline = time.monotonic() + seconds
        while words not in self.text():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.text()[-3000:]}"
            assert time.monotonic() < deadline, f"{words!r} did not come in {seconds} s: {self.text()[-3000:]}"
            time.sleep(0.1)

    def finish(self, seconds: float) -> dict:
        """Wait for the end; the summary."""
        self.process.wait(seconds)
        assert self.process.returncode == 0, self.text()[-4000:]
        return json.loads((self.folder / "summary.json").read_text())


@pytest.fixture
def train(tmp_path):
    """Start a training in a folder of its own; ended with the test."""
    started: list[Training] = []

    def start(config: Path, name: str, *arguments: str) -> Training:
        output = tmp_path / f"{name}-{len(started)}.out"
        new = [] if "--resume" in arguments else [str(config), "--name", name]
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "seamlessflow.cli", "train", *new, *arguments],
                cwd=tmp_path, env=environment(), stdout=file, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        started.append(Training(process, tmp_path / "runs" / name, output))
        return started[-1]

    yield start
    for training in started:
        if training.process.poll() is None:
            training.process.kill()
            training.process.wait()


@pytest.fixture
def up(tmp_path):
    """A running ``seamlessflow up`` in the test's folder, and its screen."""
    screen = tmp_path / "up.out"
    with screen.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "seamlessflow.cli", "up"], cwd=tmp_path, env=environment(), stdout=file, stderr=file
        )
    try:
        until(lambda: "Five services are up" in screen.read_text(), 60)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def seamlessflow(tmp_path):
    """Run a verb of the command in the test's folder."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "seamlessflow.cli", *arguments],
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip

    return run


def environment() -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SEAMLESSFLOW_")}
    return {**clean, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'shared'}"}


def until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait for something that comes true."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)
