"""A gateway alone: it serves agents that run elsewhere, and starts none; and the paths that name an episode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seamlessflow.contracts import EpisodeStarted
from seamlessflow_agent_runner.config import RunnerSettings
from seamlessflow_agent_runner.gateway.api_errors import ApiError
from seamlessflow_agent_runner.gateway.sessions import Sessions
from tests.services.agent_runner.conftest import config_of
from tests.services.agent_runner.elsewhere import RUN, bearer, external, member, start_gateway
from tests.services.agent_runner.runner_processes import children_of

CHECKOUT = Path(__file__).parents[3]
PYTHON_PATH = os.pathsep.join((str(CHECKOUT), str(CHECKOUT / "shared")))


async def test_a_gateway_alone_starts_nothing(make_world: Any, lease: Any, python_agents: Any, tmp_path: Path) -> None:
    """No process, no folder; episodes of agents that somebody else must start stay in the queue."""
    world = await make_world(config_of(external("outside"), python_agents("prints", env="inside")))
    await lease(world)
    await world.publish(member("t1", env="inside"))
    await world.publish(member("t2", env="outside"))
    before = children_of(os.getpid())
    gateway = await start_gateway(world, gateway_only=True)
    try:
        episode = await gateway.opened()
        assert (await gateway.ask(episode["base_url"], episode["api_key"])).status_code == 200
        assert (await gateway.end(episode, {"reward": 0.5})).status_code == 200
        assert children_of(os.getpid()) == before
        assert not (tmp_path / "work").exists()
        state = gateway.context.presence.status.state
        assert "not served: inside" in state and f"{gateway.base_url.removesuffix('/v1')}/episodes" in state
        assert await world.manager.context.journal.first(EpisodeStarted, RUN, episode="g-t1-0-0") is None
    finally:
        await gateway.stop()


def test_a_gateway_beside_a_runner_is_a_node_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it was named: two of one host would share a lease otherwise."""
    monkeypatch.delenv("SEAMLESSFLOW_NODE", raising=False)
    runner, gateway = RunnerSettings(), RunnerSettings(gateway_only=True)

    assert runner.node.endswith("-agent-runner") and gateway.node.endswith("-gateway")
    assert RunnerSettings(gateway_only=True, node="mine").node == "mine"
    monkeypatch.setenv("SEAMLESSFLOW_GATEWAY_ONLY", "true")
    monkeypatch.setenv("SEAMLESSFLOW_GATEWAY_TOKEN", "secret")
    assert RunnerSettings().gateway_only
    assert "secret" not in repr(RunnerSettings())


def test_help_teaches() -> None:
    """What it does, the flag, and every setting that matters to it; an unknown flag is refused."""
    run = [sys.executable, "-m", "seamlessflow_agent_runner"]
    environment = {"PYTHONPATH": PYTHON_PATH, "PATH": os.environ["PATH"], "SEAMLESSFLOW_GATEWAY_TOKEN": "secret"}
    told = subprocess.run([*run, "--help"], env=environment, capture_output=True, text=True, timeout=60, check=True).stdout

    for words in ("--gateway-only", "POST /episodes", "SEAMLESSFLOW_GATEWAY_TOKEN", "SEAMLESSFLOW_NATS_URL", "_GATEWAY_PORT"):
        assert words in told
    assert "secret" not in told.replace("Secret with", "")
    wrong = subprocess.run([*run, "--gatewayonly"], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode == 2 and "--gateway-only" in wrong.stderr


def test_a_path_that_names_an_episode_needs_its_key(make_opened: Any) -> None:
    """401 for any other, for none, and for what is no episode; after the end 409."""
    sessions = Sessions()
    one, other = (sessions.open(make_opened(f"t1-{index}-0"), "m") for index in range(2))

    assert sessions.of(bearer(one.key), "t1-0-0") is one
    assert sessions.of({"x-api-key": other.key}, "t1-1-0") is other
    for who, key in (("t1-0-0", other.key), ("t1-0-0", None), ("t1-0-0", ""), ("t9-0-0", one.key), ("", one.key), ("v1", None)):
        with pytest.raises(ApiError) as refused:
            sessions.of({} if key is None else {"Authorization": f"Bearer {key}"}, who)
        assert refused.value.status == 401
    sessions.close(one)
    assert status_of(sessions, bearer(one.key), "t1-0-0") == 409
    assert status_of(sessions, bearer(other.key), "t1-0-0") == 401


def test_a_path_that_holds_a_key_needs_no_other(make_opened: Any) -> None:
    """Whatever key its client sends is ignored, another episode's included."""
    sessions = Sessions()
    one, other = (sessions.open(make_opened(f"t1-{index}-0"), "m") for index in range(2))

    for headers in ({}, bearer("sk-from-a-config-file"), bearer(other.key), {"x-api-key": ""}):
        assert sessions.of(headers, one.key) is one
    sessions.close(one)
    assert status_of(sessions, bearer(other.key), one.key) == 409
    assert status_of(sessions, {}, one.key + "x") == 401


def test_keys_of_the_last_ended_episodes_are_remembered(make_opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those before them forgotten, with their episodes; an episode opened again has its new key."""
    from seamlessflow_agent_runner.gateway import sessions as module

    monkeypatch.setattr(module, "NUM_REMEMBERED", 2)
    sessions = Sessions()
    opened = [sessions.open(make_opened(f"t{index}-0-0"), "m") for index in range(4)]
    for session in opened:
        sessions.close(session)

    assert [status_of(sessions, bearer(each.key), each.opened.episode) for each in opened] == [401, 401, 409, 409]
    again = sessions.open(make_opened("t0-0-0"), "m")
    assert sessions.of(bearer(again.key), "t0-0-0") is again


def status_of(sessions: Sessions, headers: dict[str, str], who: str) -> int:
    with pytest.raises(ApiError) as refused:
        sessions.of(headers, who)
    return refused.value.status
