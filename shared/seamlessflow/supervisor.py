"""Keeps processes alive: starts the five services on this machine, restarts what dies, ends all of them together.

Every child dies with this process, kill -9 included, and its output goes to a file of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from .bus.server import EmbeddedServer
from .errors import ConfigError
from .processes import die_with_parent

log = structlog.get_logger()

CALM_SECONDS = 10.0
"""A process that lived this long starts again at once; one that died sooner waits longer each time."""
MAX_BACKOFF_SECONDS = 8.0
STOP_SECONDS = 20.0
"""How long a service may take to end orderly before it is killed."""


@dataclass
class Child:
    """One supervised process."""

    name: str
    argv: list[str]
    env: dict[str, str]
    log_path: Path
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    last_exit: int | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


@dataclass(frozen=True)
class Surroundings:
    """What the services of one machine are given."""

    nats_url: str
    store_url: str
    work_dir: Path
    log_dir: Path


def checkout_root() -> Path:
    """Folder that holds ``services/``: the working directory, else the checkout this library is installed from."""
    for candidate in (Path.cwd(), *Path(__file__).resolve().parents):
        if (candidate / "services" / "scheduler" / "__main__.py").is_file():
            return candidate
    raise ConfigError("the folder 'services' was not found: run this from a checkout of the project, or use --nats URL")


def service_children(around: Surroundings, *, slices: int) -> list[Child]:
    """The services of one machine as child processes.

    The machine is cut into ``slices`` devices with an equal share of its cores: every slice has a rollout-worker, and the last
    one also has the trainer, so that it lends itself to rollout between steps. One slice: sampling and training take turns.
    """
    threads = max(1, (os.cpu_count() or 1) // slices)
    children = [
        _child("scheduler", "scheduler", "local-scheduler", around),
        _child("trajectory-manager", "trajectory-manager", "local-trees", around),
        _child("agent-runner", "agent-runner", "local-agents", around),
    ]
    for index in range(slices):
        children.append(_child(f"rollout-worker-{index}", "rollout-worker", f"local-{index}", around, threads))
    children.append(_child("trainer", "trainer", f"local-{slices - 1}", around, threads))
    return children


def default_slices() -> int:
    """Two where there are two cores: on a CPU two single-threaded processes get more done than one with two threads."""
    return 2 if (os.cpu_count() or 1) >= 2 else 1


def _child(name: str, service: str, node: str, around: Surroundings, threads: int | None = None) -> Child:
    root = checkout_root()
    env = {
        # Arithmetic threads that spin while they wait steal the cores from the other services of this machine.
        "OMP_WAIT_POLICY": "passive",
        **({} if threads is None else {"OMP_NUM_THREADS": str(threads)}),
        **os.environ,
        "SEAMLESSFLOW_NATS_URL": around.nats_url,
        "SEAMLESSFLOW_STORE_URL": around.store_url,
        "SEAMLESSFLOW_WORK_DIR": str(around.work_dir),
        "SEAMLESSFLOW_NODE": node,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), str(Path.cwd()), os.environ.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
    }
    env.pop("SEAMLESSFLOW_INSTANCE", None)
    argv = [sys.executable, "-m", f"services.{service.replace('-', '_')}"]
    return Child(name=name, argv=argv, env=env, log_path=around.log_dir / f"{name}.log")


class Supervisor:
    """Runs children until stopped. ``on_event`` hears (name, what happened) for the screen."""

    def __init__(self, children: list[Child], on_event: Callable[[str, str], None] | None = None) -> None:
        self.children = children
        self._say = on_event or (lambda name, what: None)
        self._stopping = False
        self._keepers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin keeping every child alive."""
        self._keepers = [asyncio.create_task(self._keep(child)) for child in self.children]

    async def _keep(self, child: Child) -> None:
        backoff = 0.5
        while not self._stopping:
            began = time.monotonic()
            child.log_path.parent.mkdir(parents=True, exist_ok=True)
            with child.log_path.open("ab") as output:
                child.process = await asyncio.create_subprocess_exec(
                    *child.argv,
                    env=child.env,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    preexec_fn=die_with_parent,
                    start_new_session=True,  # Ctrl-C in the terminal is ours to pass on, in order
                )
            child.last_exit = await child.process.wait()
            if self._stopping:
                return
            child.restarts += 1
            backoff = 0.5 if time.monotonic() - began > CALM_SECONDS else min(backoff * 2, MAX_BACKOFF_SECONDS)
            self._say(child.name, f"died ({_cause(child.last_exit)}), restarting in {backoff:.1f} s; see {child.log_path}")
            await asyncio.sleep(backoff)

    async def stop(self) -> None:
        """SIGTERM to all, wait, kill what is left. Idempotent."""
        self._stopping = True
        for child in self.children:
            _signal(child, signal.SIGTERM)
        waiting = [child.process.wait() for child in self.children if child.process is not None]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waiting), STOP_SECONDS)
        for child in self.children:
            if child.process is not None and child.process.returncode is None:
                log.warning("service.killed", name=child.name, reason=f"still there {STOP_SECONDS:.0f} s after SIGTERM")
                _signal(child, signal.SIGKILL)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)


async def keep_server(server: EmbeddedServer, on_event: Callable[[str, str], None]) -> None:
    """Restart the embedded nats-server on its port whenever it dies, until cancelled."""
    while True:
        await asyncio.sleep(0.2)
        if not server.running:
            on_event("nats-server", "died, restarting on the same port")
            server.restart()  # here, not in a thread: it dies with the thread that started it


def _signal(child: Child, number: signal.Signals) -> None:
    if child.process is not None and child.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(number)


def _cause(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
