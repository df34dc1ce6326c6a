"""kill -9 of the runner: nothing that it started is left, however hard an agent tries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[2]
NUM_EXPECTED = 7
"""Two forkservers; a function agent and its sleep; a shell agent turned sleep, its background sleep, its daemon sleep."""


def test_no_agent_outlives_a_killed_runner(tmp_path: Path) -> None:
    """Function and command agents, their children, and a daemon in a session of its own; SIGTERM is ignored by one."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(CHECKOUT), str(CHECKOUT / "shared")))}
    runner = subprocess.Popen([sys.executable, str(HERE / "runner_to_kill.py"), str(tmp_path)], env=environment)
    try:
        assert eventually(lambda: len(below(runner.pid)) >= NUM_EXPECTED, seconds=30), below(runner.pid)
        started = below(runner.pid)
    finally:
        runner.send_signal(signal.SIGKILL)
        runner.wait()

    assert eventually(lambda: not [pid for pid in started if is_running(pid)], seconds=10), started


def below(pid: int) -> set[int]:
    """All running descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {child for child in found - {pid} if is_running(child)}


def is_running(pid: int) -> bool:
    """A zombie that nobody has reaped yet is not running."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: object, *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
