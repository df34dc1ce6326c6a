"""The services of one machine as child processes: which there are, and what each is given."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from seamlessflow.checkout import checkout_root
from seamlessflow.errors import ConfigError

from .supervisor import Child


def _takes_any_threshold(library: str, version: str) -> bool:
    """Whether malloc's mmap threshold may lie above 32 MiB: glibc from 2.35 on. Older ones then map every tensor anew."""
    parts = version.split(".")
    return library == "glibc" and all(map(str.isdigit, parts)) and tuple(map(int, parts)) >= (2, 35)


def _kept(threshold: int, trim: int) -> dict[str, str]:
    return {"MALLOC_MMAP_THRESHOLD_": str(threshold), "MALLOC_TRIM_THRESHOLD_": str(trim)}


_MODEST = _kept(32 << 20, 256 << 20)
_KEEPS_MEMORY = {
    "trainer": _kept(4 << 30, 4 << 30) if _takes_any_threshold(*platform.libc_ver()) else _MODEST,
    "rollout-worker": _MODEST,
}
"""glibc gives large tensors back to the kernel at every free and gets them zeroed again: a sixth of a training step. A worker
keeps less: the cache that a sleeping engine frees is for the trainer beside it."""


SERVICES = ("scheduler", "trajectory-manager", "agent-runner", "rollout-worker", "trainer")
VLLM_PYTHON = Path(".venv-vllm") / "bin" / "python"
"""Below the checkout, or where there is none the working directory; made by ./task setup:vllm."""


@dataclass(frozen=True)
class Machine:
    """What the services of one machine are given."""

    nats_url: str
    store_url: str
    work_dir: Path
    log_dir: Path


def python_path() -> str:
    """Where the services find what is not installed, agents for example: the checkout, the working directory, PYTHONPATH."""
    return os.pathsep.join(filter(None, [str(checkout_root()), str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))


def check_installed(engine: str) -> None:
    """Raise ConfigError unless this machine has all five services and an interpreter for this engine."""
    rollout_python = interpreter_of(engine)
    # What runs in another interpreter is installed there.
    modules_of(*(each for each in SERVICES if each != "rollout-worker" or rollout_python == Path(sys.executable)))


def modules_of(*services: str) -> list[str]:
    """What ``python -m`` starts for each, in this interpreter. Raises ConfigError that names those which are not installed."""
    missing = [each for each in services if importlib.util.find_spec(_module(each)) is None]
    if missing:
        named, extra = ", ".join(f"seamlessflow-{each}" for each in missing), missing[0] if len(services) == 1 else "all"
        raise ConfigError(f'{named} not installed in {sys.prefix}: pip install "seamlessflow[{extra}]"')
    return [_module(each) for each in services]


def _module(service: str) -> str:
    """Hyphens outside, underscores inside."""
    return f"seamlessflow_{service.replace('-', '_')}"


def interpreter_of(engine: str) -> Path:
    """The Python that a rollout-worker with this engine runs in. Raises ConfigError where there is none.

    vllm: that of ``.venv-vllm`` where that has it, since vLLM pins other versions than the rest; else ours, if it has vLLM.
    """
    if engine != "vllm":
        return Path(sys.executable)
    own = checkout_root() / VLLM_PYTHON
    # Looked for and not imported, which takes seconds. An environment whose making was interrupted has no vLLM.
    if own.is_file() and any(own.parents[1].glob("lib/python3*/site-packages/vllm/__init__.py")):
        return own
    if importlib.util.find_spec("vllm") is not None:
        return Path(sys.executable)
    raise ConfigError(
        f'engine "vllm": there is no {VLLM_PYTHON} with vLLM in {checkout_root()}: ./task setup:vllm makes it for this '
        "machine's CPU (once, minutes); on a GPU see docs/operations.md"
    )


def default_slices() -> int:
    """Two where there are two cores: on a CPU two single-threaded processes get more done than one with two threads."""
    return 2 if (os.cpu_count() or 1) >= 2 else 1


def service_children(machine: Machine, *, slices: int, engine: str = "transformers") -> list[Child]:
    """The services of one machine as child processes; ``engine`` chooses the rollout-workers' interpreter, and may raise
    ConfigError.

    The machine is cut into ``slices`` devices with an equal share of its cores: every slice has a rollout-worker, and the last
    one also has the trainer, so that it lends itself to rollout between steps. One slice: sampling and training take turns.
    The servers of a remote engine belong to one worker and are no device of this machine: the trainer has that to itself.
    """
    is_remote = engine == "remote"
    slices, trainer = (1, "local-trainer") if is_remote else (slices, f"local-{slices - 1}")
    threads, rollout_python = max(1, (os.cpu_count() or 1) // slices), interpreter_of(engine)
    children = [
        _child("scheduler", "scheduler", "local-scheduler", machine),
        _child("trajectory-manager", "trajectory-manager", "local-trees", machine),
        _child("agent-runner", "agent-runner", "local-agents", machine),
    ]
    for index in range(slices):
        worker = _child(f"rollout-worker-{index}", "rollout-worker", f"local-{index}", machine, threads)
        worker.argv[0] = str(rollout_python)
        children.append(worker)
    # All cores for the trainer: while it steps, the other slices often wait for it at the staleness bound.
    children.append(_child("trainer", "trainer", trainer, machine, os.cpu_count()))
    return children


def _child(name: str, service: str, node: str, machine: Machine, threads: int | None = None) -> Child:
    env = {
        # Arithmetic threads that spin while they wait steal the cores from the other services of this machine.
        "OMP_WAIT_POLICY": "passive",
        **_KEEPS_MEMORY.get(service, {}),
        **({} if threads is None else {"OMP_NUM_THREADS": str(threads)}),
        **os.environ,
        "SEAMLESSFLOW_NATS_URL": machine.nats_url,
        "SEAMLESSFLOW_STORE_URL": machine.store_url,
        "SEAMLESSFLOW_WORK_DIR": str(machine.work_dir),
        "SEAMLESSFLOW_NODE": node,
        "PYTHONPATH": python_path(),
        "PYTHONUNBUFFERED": "1",
    }
    env.pop("SEAMLESSFLOW_INSTANCE", None)
    argv = [sys.executable, "-m", _module(service)]
    return Child(name=name, argv=argv, env=env, log_path=machine.log_dir / f"{name}.log")
