"""The launch of a configured agent's process, and the outcome that its end means. Pure."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import seamlessflow
from seamlessflow.checkout import checkout_root
from seamlessflow.config.sampling_sections import AgentSection
from seamlessflow.contracts import EpisodeOpened, EpisodeStatus
from seamlessflow_agent_runner.processes.agent_child import TASK_VARIABLE
from seamlessflow_agent_runner.processes.agent_process import Cause, ProcessEnd
from seamlessflow_agent_runner.processes.forkserver_client import ForkserverKind, Launch

from .deadline import overall_seconds

CHECKOUT = checkout_root()
"""Entrypoints and verifiers are imported with it on their path; without a checkout it is the service's working directory."""
LIBRARY = Path(seamlessflow.__file__).resolve().parents[1]
"""Where ``seamlessflow`` lies: what agents are forked from imports a module of it."""
ENTRY = "entry"
"""Key of a task's data that holds a reasoning-gym entry, its answer included: for the scorer, never for the agent."""
TAIL_LINES = 8
MEGABYTE = 1 << 20

_SHOWN_ENDINGS = {
    Cause.DEADLINE: EpisodeStatus.DEADLINE,
    Cause.OVERALL: EpisodeStatus.DEADLINE,
    Cause.MEMORY: EpisodeStatus.LIMIT,
    Cause.OUTPUT: EpisodeStatus.LIMIT,
    Cause.STOPPED: EpisodeStatus.RUNNER_LOST,
    Cause.LOST: EpisodeStatus.RUNNER_LOST,
}


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """Status of an attempt. Exactly a COMPLETED one has an ``answer``, still to be judged, or a ``reward``."""

    status: EpisodeStatus
    reason: str = ""
    answer: str | None = None
    reward: float | None = None
    """As an external agent reported it."""


def base_environment(extra: Mapping[str, str], *, importing: bool) -> dict[str, str]:
    """PATH, LANG, the variables of the agent's section, and for Python code the checkout on its path. Nothing else of ours."""
    environment = {"PATH": _search_path(), "LANG": "C.UTF-8", **extra}
    if importing:
        # Installed packages are found anyway, and must not come before the standard library.
        ours = (CHECKOUT,) if LIBRARY.name in ("site-packages", "dist-packages") else (CHECKOUT, LIBRARY)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (*map(str, ours), extra.get("PYTHONPATH", ""))))
    return environment


def _search_path() -> str:
    """The service's PATH with its interpreter's folder first: ``python`` is the one that has the packages."""
    ours = str(Path(sys.executable).parent)
    rest = os.environ.get("PATH", os.defpath)
    return rest if rest.split(os.pathsep)[0] == ours else os.pathsep.join((ours, rest))


def kind_of(agent: AgentSection) -> ForkserverKind:
    """The forkserver of an agent: its own, unless it is another program or wants a new interpreter each time."""
    if agent.entrypoint is None or agent.fresh:
        return BARE
    return ForkserverKind(agent.entrypoint, tuple(sorted(base_environment(agent.environment, importing=True).items())))


BARE = ForkserverKind(None, tuple(sorted(base_environment({}, importing=True).items())))


def task_of(opened: EpisodeOpened) -> dict[str, Any]:
    """The task as a verifier sees it."""
    return {
        "task": opened.origin.task,
        "env": opened.env,
        "episode": opened.episode,
        "index": opened.origin.index,
        "prompt": opened.prompt,
        "data": opened.data,
    }


def task_for_agent(opened: EpisodeOpened) -> dict[str, Any]:
    """The task as the agent sees it: without the entry that holds the right answer."""
    return {**task_of(opened), "data": {key: value for key, value in opened.data.items() if key != ENTRY}}


def launch_of(agent: AgentSection, opened: EpisodeOpened, *, home: Path, base_url: str, key: str, fresh: bool) -> Launch:
    """How to start an episode's agent. ``fresh``: run an entrypoint in a brand-new interpreter."""
    environment = base_environment(agent.environment, importing=agent.entrypoint is not None) | {
        "HOME": str(home),
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),  # its clients add the version themselves
        "ANTHROPIC_API_KEY": key,
        TASK_VARIABLE: str(home / "task.json"),
    }
    argv: tuple[str, ...] | None = None
    if agent.command is not None:
        argv = tuple(word.replace("{checkout}", str(CHECKOUT)).replace("{prompt}", opened.prompt) for word in agent.command)
    elif fresh and agent.entrypoint is not None:
        argv = (sys.executable, "-m", "seamlessflow_agent_runner.processes.agent_child", agent.entrypoint)
    return Launch(
        name=opened.episode,
        argv=argv,
        keep_result=agent.command is None,
        cwd=str(home),
        environment=environment,
        memory_bytes=agent.memory_mb * MEGABYTE,
    )


def outcome_of(ending: ProcessEnd, agent: AgentSection) -> EpisodeOutcome:
    """Status, reason for people, and the answer if there is one."""
    result = ending.result or {}
    if "not_started" in result:
        return EpisodeOutcome(EpisodeStatus.NOT_STARTED, str(result["not_started"]))
    if ending.cause is not Cause.EXIT:
        return EpisodeOutcome(_SHOWN_ENDINGS[ending.cause], _with_tail(_explained(ending.cause, agent), ending))
    if ending.exit_code != 0:
        return EpisodeOutcome(EpisodeStatus.AGENT_FAILED, _with_tail(_exit_text(ending.exit_code), ending))
    answer = result.get("answer")
    return EpisodeOutcome(
        EpisodeStatus.COMPLETED,
        answer=answer if isinstance(answer, str) else ending.stdout.decode(errors="replace").strip(),
    )


def _explained(cause: Cause, agent: AgentSection) -> str:
    return {
        Cause.DEADLINE: f"killed: still running after {agent.deadline_seconds:g} s of its own (deadline_seconds)",
        Cause.OVERALL: f"killed: still there after {overall_seconds(agent.deadline_seconds):g} s, waiting for answers included",
        Cause.MEMORY: f"killed: used more than {agent.memory_mb} MB of memory (memory_mb)",
        Cause.OUTPUT: f"killed: printed more than {agent.output_bytes} bytes (output_bytes)",
        Cause.STOPPED: "killed: the agent-runner stops or leaves the run",
        Cause.LOST: "the process that agents are forked from died, and the agent with it",
    }[cause]


def _exit_text(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _with_tail(text: str, ending: ProcessEnd) -> str:
    tail = "\n".join(ending.stderr_tail.decode(errors="replace").strip().splitlines()[-TAIL_LINES:])
    return f"{text}\n{tail}" if tail else text
