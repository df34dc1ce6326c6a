"""Agents that misbehave: what each way of failing is called, and that nothing of it stays."""

from __future__ import annotations

import re
from typing import Any

import pytest

from seamlessflow.contracts import EpisodeStatus
from tests.services.agent_runner.runner_processes import own_megabytes, processes_gone

FAILURES: dict[str, tuple[dict[str, Any], EpisodeStatus, str]] = {
    "raises": ({}, EpisodeStatus.AGENT_FAILED, "exit code 1\n.*RuntimeError: no idea"),
    "exits": ({}, EpisodeStatus.AGENT_FAILED, "exit code 3\nlast words"),
    "crashes": ({}, EpisodeStatus.AGENT_FAILED, "killed by signal SIGSEGV"),
    "returns_number": ({}, EpisodeStatus.AGENT_FAILED, "expected|got int"),
    "hangs": ({"deadline_seconds": 0.7}, EpisodeStatus.DEADLINE, "still running after 0.7 s"),
    "prints_a_gigabyte": ({}, EpisodeStatus.LIMIT, "more than 1000000 bytes"),
    "eats_memory": ({"memory_mb": 150}, EpisodeStatus.LIMIT, "more than 150 MB"),
    "eats_memory_in_a_child": ({"memory_mb": 150}, EpisodeStatus.LIMIT, "more than 150 MB"),
    "missing": ({}, EpisodeStatus.NOT_STARTED, "has no attribute 'missing'"),
}


@pytest.mark.parametrize("function", FAILURES)
async def test_a_failure_is_a_status_with_a_reason_and_never_a_reward(
    start_runner: Any, python_agents: Any, function: str
) -> None:
    """Each misbehaving agent, forked from a warm interpreter."""
    more, status, words = FAILURES[function]
    world, _ = await start_runner(python_agents(function, **more))
    memory_before = own_megabytes()

    ended = await world.run_one()

    assert ended.status is status and ended.reward is None
    assert matches(words, ended.reason), ended.reason
    assert own_megabytes() - memory_before < 50
    assert await processes_gone("sleep 1000")


@pytest.mark.parametrize("function", ["raises", "hangs", "eats_memory", "missing", "prints_a_gigabyte"])
async def test_a_brand_new_interpreter_ends_in_the_same_ways(start_runner: Any, python_agents: Any, function: str) -> None:
    """fresh = true changes the cost, not the outcome."""
    more, status, words = FAILURES[function]
    world, _ = await start_runner(python_agents(function, fresh=True, **more))

    ended = await world.run_one()

    assert ended.status is status and ended.reward is None and matches(words, ended.reason), ended.reason


async def test_a_daemon_does_not_outlive_its_agent(start_runner: Any, python_agents: Any) -> None:
    """Even in a session of its own with its parent gone."""
    world, _ = await start_runner(python_agents("leaves_daemon"))

    assert (await world.run_one()).status is EpisodeStatus.COMPLETED
    assert await processes_gone("sleep 1000")


def matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.DOTALL) is not None
