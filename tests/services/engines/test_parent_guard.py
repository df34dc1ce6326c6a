"""Processes that others start for us die with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seamlessflow_rollout_worker.engines.vllm import process
from seamlessflow_rollout_worker.engines.vllm.process import DiesWith

PARENT = """
import multiprocessing, os, sys, time
from seamlessflow_rollout_worker.engines.vllm.process import DiesWith

def child(guard, depth):
    if depth:
        multiprocessing.get_context("spawn").Process(target=child, args=(guard, depth - 1)).start()
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    child(DiesWith(os.getpid()), 2)
"""


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_children_and_grandchildren_of_a_killed_process_are_gone(tmp_path: Path) -> None:
    """kill -9 runs no handler; whoever carries the guard ends within a second all the same."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["shared", "."])}
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    family = [int(parent.stdout.readline()) for _ in range(3)]
    assert all(is_there(pid) for pid in family)

    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while any(map(is_there, family)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_there, family))


def test_without_process_descriptors_it_looks_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old kernels and some sandboxes have none."""

    def none(pid: int) -> int:
        raise OSError("not here")

    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(process.os, "pidfd_open", none, raising=False)
    monkeypatch.setattr(process, "POLL_SECONDS", 0.01)
    child = subprocess.Popen(["sleep", "0.2"])
    reaper = process.threading.Timer(0.3, child.wait)
    reaper.start()
    real_kill = os.kill

    def kill(pid: int, number: int) -> None:
        if number:
            killed.append((pid, number))
        else:
            real_kill(pid, number)

    monkeypatch.setattr(process.os, "kill", kill)
    process._kill_after(child.pid)
    assert killed == [(os.getpid(), signal.SIGKILL)]


def test_a_copy_at_home_watches_nothing() -> None:
    """Configurations are copied in our own process too, which must not wait for its own end."""
    made = DiesWith(os.getpid())
    function, arguments = made.__reduce__()
    assert function(*arguments).pid == os.getpid()  # type: ignore[operator]
    assert os.getpid() not in process._watched
