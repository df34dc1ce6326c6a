"""Benchmarks that are interrupted or killed end at once, and leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from loadtest.cpu_seconds import is_known
from seamlessflow.checkout import checkout_root

pytestmark = pytest.mark.skipif(not is_known(), reason="needs /proc")

T = TypeVar("T")

GRID = """
from loadtest.fleet.multiplex import main
main("--no-timed --modes auto --workloads single --kinds stationary --results RESULTS".split())
"""
STUB = """
import time
from loadtest.weights_downloads import _s3_server
from pathlib import Path
with _s3_server(Path("RESULTS")):
    time.sleep(60)
"""


@pytest.mark.parametrize("signalled", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_cells_that_are_simulated_end_with_who_asked_for_them_and_no_other_begins(tmp_path: Path, signalled: signal.Signals):
    """Ctrl-C reaches a shell's whole job; here it reaches the benchmark alone, which is harder."""
    assert _left_after(GRID.replace("RESULTS", str(tmp_path)), "loadtest.fleet.virtual_cell", signalled) == []


def test_the_store_of_the_downloads_ends_with_them(tmp_path: Path):
    """Even if they are killed."""
    assert _left_after(STUB.replace("RESULTS", str(tmp_path)), "loadtest.weights_s3_stub", signal.SIGKILL) == []


def _left_after(code: str, module: str, signalled: signal.Signals) -> list[int]:
    """Start it, wait for its first child, send the signal; returns what is left of its children when it has gone."""
    benchmark = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=checkout_root(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        children = _soon(lambda: _children(benchmark.pid, module), 60.0)
        assert children
        benchmark.send_signal(signalled)
        benchmark.wait(timeout=10)
        _soon(lambda: not _alive(children, module), 5.0)
        return _alive(children, module)
    finally:
        benchmark.kill()
        benchmark.wait()
        for pid in _alive(children, module):
            os.kill(pid, signal.SIGKILL)


def _children(pid: int, module: str) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return _alive(found, module)


def _alive(pids: list[int], module: str) -> list[int]:
    return [pid for pid in pids if module in _command(pid)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()  # empty once it has ended
    except OSError:
        return ""


def _soon(look: Callable[[], T], seconds: float) -> T:
    until = time.monotonic() + seconds
    while not (found := look()) and time.monotonic() < until:
        time.sleep(0.05)
    return found
