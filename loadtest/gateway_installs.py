"""Environments of the peers: from PyPI, each in a folder of its own below ``runs/peers``, made on first use.

``loadtest/peers/NAME.txt`` pins the versions. What cannot be installed is said, and nothing takes its place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from seamlessflow.errors import Unavailable

ENVIRONMENTS = Path(__file__).parents[1] / "runs" / "peers"
REQUIREMENTS = Path(__file__).parent / "peers"
INSTALL_SECONDS = 1200


def environment_of(name: str, python: tuple[int, int]) -> Path:
    """The folder of a peer's environment. ``python``: the lowest version it runs on.

    Raises Unavailable that says why there is none.
    """
    requirements = (REQUIREMENTS / f"{name}.txt").read_text()
    folder = ENVIRONMENTS / name
    complete = folder / "complete.txt"  # what it was made from, written last
    if complete.is_file() and complete.read_text() == requirements:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{name}: making {folder}", flush=True)
    _run(name, [str(interpreter(name, python)), "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(name, [*pip, "-r", str(REQUIREMENTS / f"{name}.txt")])
    complete.write_text(requirements)
    return folder


def interpreter(name: str, python: tuple[int, int]) -> Path:
    """A Python that is new enough: ours, or one on PATH, or one of pyenv's. Raises Unavailable."""
    if sys.version_info[:2] >= python:
        return Path(sys.executable)
    newer = [shutil.which(f"python{python[0]}.{minor}") or "" for minor in range(python[1], python[1] + 6)]
    for found in (*filter(None, newer), *map(str, sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3")))):
        check = f"import sys, venv; sys.exit(sys.version_info < {python})"
        if subprocess.run([found, "-c", check], capture_output=True, check=False).returncode == 0:
            return Path(found)
    raise Unavailable(f"{name} needs Python {python[0]}.{python[1]} or later, and none was found")


def foreign_environment() -> dict[str, str]:
    """Our environment variables without what belongs to our own interpreter or services."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEAMLESSFLOW_")}
    return {name: value for name, value in kept.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def _run(name: str, command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS, env=foreign_environment())
    except (subprocess.SubprocessError, OSError) as wrong:
        words = [line for line in (getattr(wrong, "stderr", None) or str(wrong)).splitlines() if line.strip()]
        raise Unavailable(f"{name} cannot be installed: {words[-1] if words else wrong}") from wrong
