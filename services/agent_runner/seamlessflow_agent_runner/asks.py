"""What agents that run elsewhere ask for, and the words for why there is none of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seamlessflow.run_config import RunConfig

from .gateway.errors import ApiError, bad_request
from .outlet import Outlet


class NoEpisode(Exception):
    """None came in time; the message says why. ``task``: the task it was for; asking for it again loses nothing."""

    def __init__(self, message: str, task: str | None) -> None:
        super().__init__(message)
        self.message, self.task = message, task


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request asks for."""

    run: str | None = None
    env: str | None = None
    task: str | None = None
    """Of this task only."""
    prompt: str | None = None
    """Not None: a new task, named ``task`` or anew."""
    data: Mapping[str, Any] | None = None
    wait_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Serving:
    """The run this gateway is a member of, and its external environments that it holds."""

    run: str
    config: RunConfig
    outlets: Mapping[str, Outlet]


def env_of(ask: Ask, config: RunConfig) -> str:
    """Which environment is asked for. Raises ApiError that names those there are."""
    external = [agent.env for agent in config.agents if agent.external]
    if ask.env is None and len(external) == 1:
        return external[0]
    if ask.env in external:
        return str(ask.env)
    known = ", ".join(external) or "none"
    if ask.env is None and external:
        raise bad_request(f"env must say which: this run's environments of external agents are {known}", "env")
    raise ApiError(
        404, f"no external agent of this run has env {ask.env!r}; those that have one: {known}", code="unknown_env", param="env"
    )


def why_not_served(ask: Ask, serving: Serving | None) -> str:
    """For people."""
    if serving is None:
        return f"this gateway serves no run now; waited {ask.wait_seconds:g} s for the scheduler to give it one"
    if ask.run not in (None, serving.run):
        return f"this gateway serves run {serving.run} now, and not {ask.run}"
    return f"this gateway does not hold that environment of run {serving.run} yet"


def why_none(serving: Serving, env: str, task: str | None, num_open: int) -> str:
    """For people. ``num_open``: episodes of external agents that are open here."""
    most = serving.config.fleet.agents
    if num_open >= most:
        return f"{num_open} episodes of external agents are open here, which is all fleet.agents = {most} allows"
    what = f"task {task} has no" if task is not None else f"environment {env} has no"
    return f"{what} episode for now: the scheduler admits more as training gets on"
