"""What can be wrong with a run file is said before anything starts: agents, verifiers, model, store, tasks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from seamlessflow.checkout import checkout_root
from seamlessflow.config.run import RunConfig
from seamlessflow.config.sampling_sections import REPORTED, AgentSection
from seamlessflow.errors import ConfigError
from seamlessflow.local.services import check_installed, python_path
from seamlessflow.redaction import without_password
from seamlessflow.store.large_payloads import Store

IMPORT_SECONDS = 120.0
REASON_CHARACTERS = 1500
_IMPORT = """
import importlib, sys
module, _, name = sys.argv[1].partition(":")
function = getattr(importlib.import_module(module), name)
if not callable(function):
    raise TypeError(f"{sys.argv[1]} is a {type(function).__name__}, not a function")
"""


def check_agents(config: RunConfig) -> None:
    """Raise ConfigError that lists every entrypoint, verifier and program that cannot be had here."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], str | None] = {}
    problems = []
    for agent in config.agents:
        verifier = None if agent.reward in ("reasoning_gym", REPORTED) else agent.reward
        for key, name in (("entrypoint", agent.entrypoint), ("reward", verifier)):
            if name is None:
                continue
            environment = agent.environment if key == "entrypoint" else {}
            asked = (name, tuple(sorted(environment.items())))
            if asked not in found:
                found[asked] = import_problem(name, environment)
            if found[asked]:
                problems.append(f"  agent {agent.env!r}, {key} {name!r}: {found[asked]}")
        if agent.command is not None and (missing := _missing_program(agent)):
            problems.append(f"  agent {agent.env!r}, command: {missing}")
    if problems:
        raise ConfigError("these cannot be used, and nothing was started:\n" + "\n".join(problems))


def check_engine(config: RunConfig) -> None:
    """Raise ConfigError where this machine lacks a service, or an environment for the run's engine."""
    check_installed(config.model.engine)


def import_problem(name: str, environment: Mapping[str, str]) -> str | None:
    """Why ``module:function`` cannot be imported where the services look for it, or None. In a process of its own."""
    path = os.pathsep.join(filter(None, (python_path(), environment.get("PYTHONPATH", ""))))
    argv = [sys.executable, "-c", _IMPORT, name]
    env = {**os.environ, **environment, "PYTHONPATH": path}
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=IMPORT_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"importing its module takes longer than {IMPORT_SECONDS:.0f} s"
    if done.returncode == 0:
        return None
    said = [line for line in done.stderr.strip().splitlines() if line.strip()]
    return said[-1][:REASON_CHARACTERS] if said else f"importing its module ended the process with exit code {done.returncode}"


def _missing_program(agent: AgentSection) -> str | None:
    assert agent.command is not None
    program = agent.command[0].replace("{checkout}", str(checkout_root()))
    folders = (str(Path(sys.executable).parent), agent.environment.get("PATH", os.environ.get("PATH", os.defpath)))
    if shutil.which(program, path=os.pathsep.join(folders)) is None:
        return f"no program {program!r} was found"
    return None


def prepare_model(config: RunConfig, console: Console) -> None:
    """Have the model here before anything starts, so that a wrong name is said at once. In a process of its own: torch."""
    name = config.model.name
    with console.status(f"preparing model {name}"):
        done = subprocess.run([sys.executable, "-m", "seamlessflow.models", name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"model.name: {name!r} cannot be had:\n{done.stderr.strip()[-REASON_CHARACTERS:]}")


def check_store(url: str) -> None:
    """Raise ConfigError or Unavailable, which name the URL and the reason, unless the store can be written."""
    try:
        store = Store(url)
    except (ValueError, ImportError) as wrong:  # no such protocol, or its package is not installed
        raise ConfigError(f"store {without_password(url)}: {wrong}") from wrong
    store.write("probe", b"written before the run began, to know that the store can be written")


def check_folder(path: Path) -> None:
    """Raise ConfigError unless a folder is or can be made here, without making it."""
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{path}: the run's files belong there, and {nearest} is not a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: the run's files belong there, and {nearest} cannot be written")
