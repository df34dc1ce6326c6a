"""Environments of the clients' own, below runs/clients, which git ignores: their dependencies contradict each other and ours.

Made on first use from the pins in ``requirements`` (by uv where there is one, else by venv and our pip) and from ``npm``;
made again when the pins change. ``python -m tests.clients.environments [--npm] [NAME ...]`` makes them, all when none is named.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "runs" / "clients"
REQUIREMENTS = HERE / "requirements"
NPM_PACKAGES = HERE / "npm" / "package.json"
NPM = "npm"
STAMP = ".made-from"
"""Holds the digest of the pins an environment was made from; written last."""


def names() -> list[str]:
    """Every environment of a Python client."""
    return sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))


def python_of(name: str) -> Path:
    return FOLDER / name / "bin" / "python"


def binary_of(name: str) -> Path:
    """A command that an npm package brings."""
    return FOLDER / NPM / "node_modules" / ".bin" / name


def is_made(name: str) -> bool:
    """Whether it was made from the pins as they are now."""
    stamp = FOLDER / name / STAMP
    return stamp.is_file() and stamp.read_text() == _digest(_pins_of(name))


def make(name: str) -> None:
    """Make it unless it is there. Raises CalledProcessError, after pip, uv or npm said why."""
    if is_made(name):
        return
    print(f"clients: making runs/clients/{name} (once)", file=sys.stderr, flush=True)
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if name == NPM:
        _install_from_npm(folder)
    else:
        _install_from_pypi(folder, _pins_of(name))
    (folder / STAMP).write_text(_digest(_pins_of(name)))


def _install_from_pypi(folder: Path, pins: Path) -> None:
    python = folder / "bin" / "python"
    if (uv := shutil.which("uv")) is not None:
        _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
        _run(uv, "pip", "install", "--quiet", "--python", str(python), "--requirement", str(pins))
        return
    _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    _run(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--requirement", str(pins))


def _install_from_npm(folder: Path) -> None:
    shutil.copy(NPM_PACKAGES, folder)
    _run("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", cwd=folder)


def _run(*command: str, cwd: Path | None = None) -> None:
    subprocess.run(command, cwd=cwd, check=True, stdin=subprocess.DEVNULL)


def _pins_of(name: str) -> Path:
    return NPM_PACKAGES if name == NPM else REQUIREMENTS / f"{name}.txt"


def _digest(pins: Path) -> str:
    return hashlib.sha256(pins.read_bytes() + sys.version.split()[0].encode()).hexdigest()


if __name__ == "__main__":
    wanted = [word for word in sys.argv[1:] if word != "--npm"]
    for each in [*(wanted or names()), *([NPM] if "--npm" in sys.argv else [])]:
        make(each)
