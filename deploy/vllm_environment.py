"""``./task setup:vllm``: an environment of its own for the vLLM engine on a CPU, ``.venv-vllm``, which git ignores.

vLLM pins other versions than the rest of the project. It brings torchvision, torchaudio and torchcodec, which the engine does
not need, and whose builds do not fit the CPU build of torch: transformers fails to import beside them, so they are removed.
Made once, and again when what it is made from changes; a second run looks at a stamp and is done.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-vllm"
PYTHON = FOLDER / "bin" / "python"
STAMP = FOLDER / ".installed"
"""Digest of what it was made from; written last."""
EXTRA = "tests-vllm"
"""Of the workspace: vLLM, and what the tests of its engine need."""
_REQUIREMENT = re.compile(r"^([\w-]+)(?:\[([\w,-]+)\])?")
NOT_WANTED = ("torchvision", "torchaudio", "torchcodec")


def wanted() -> str:
    """Digest of the requirements in all pyproject files, this script and this Python; other extras do not matter."""
    read = [tomllib.loads(file.read_text())["project"] for file in (ROOT / "pyproject.toml", *_packages("pyproject.toml"))]
    projects = {project["name"]: project for project in read}
    found: set[str] = set()
    for name in projects:
        _collect(f"{name}[{EXTRA}]" if name == "seamlessflow-workspace" else name, projects, found)
    return hashlib.sha256(json.dumps([sorted(found), sys.version]).encode() + Path(__file__).read_bytes()).hexdigest()


def _packages(name: str = "") -> list[Path]:
    """Library and services, or their files of this name."""
    return [ROOT / "shared" / name, *(file.parent / name for file in sorted(ROOT.glob("services/*/pyproject.toml")))]


def _collect(requirement: str, projects: Mapping[str, Any], found: set[str]) -> None:
    """A requirement, and what it requires in turn where it is one of ours."""
    if requirement in found:
        return
    found.add(requirement)
    name, extras = _REQUIREMENT.findall(requirement)[0]
    if (project := projects.get(name)) is None:
        return
    optional = project.get("optional-dependencies", {})
    for inner in (*project.get("dependencies", ()), *(each for extra in extras.split(",") for each in optional.get(extra, ()))):
        _collect(inner, projects, found)


def make() -> None:
    """Make it unless it is there. Raises CalledProcessError, after pip said why."""
    if STAMP.is_file() and STAMP.read_text() == wanted():
        return
    began = time.monotonic()
    print("setup:vllm: making .venv-vllm (once; minutes)", file=sys.stderr, flush=True)
    if not PYTHON.exists():
        _run(sys.executable, "-m", "venv", "--without-pip", str(FOLDER))
    STAMP.unlink(missing_ok=True)
    _pip("install", "--quiet", *(word for each in (f"{ROOT}[{EXTRA}]", *_packages()) for word in ("--editable", str(each))))
    _pip("uninstall", "--quiet", "--yes", *NOT_WANTED)
    STAMP.write_text(wanted())
    print(f"setup:vllm: made in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _pip(*arguments: str) -> None:
    _run(sys.executable, "-m", "pip", "--python", str(PYTHON), "--disable-pip-version-check", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    try:
        make()
    except subprocess.CalledProcessError as failed:
        sys.exit(f"setup:vllm: {failed.cmd[3:]} failed; the next ./task setup:vllm goes on")
