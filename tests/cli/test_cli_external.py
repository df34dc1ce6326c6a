"""What is checked of an agent that runs elsewhere before a run starts: its verifier, which runs here, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from seamlessflow.cli.preflight import check_agents
from seamlessflow.config.run import RunConfig, parse_run_config
from seamlessflow.errors import ConfigError


def run_of(**agent: Any) -> RunConfig:
    agents = [{"env": "far", "external": True, **agent}]
    return parse_run_config({"model": {"name": "m"}, "agents": agents, "algorithm": {"steps": 1}})


@pytest.mark.parametrize("agent", [{"reward": "reported"}, {}, {"reward": "deploy.demo.verifiers:last_number"}])
def test_an_agent_elsewhere_needs_nothing_here(agent: dict[str, Any]) -> None:
    """It reports its reward, the data set judges, or a verifier that is here does."""
    check_agents(run_of(**agent))


def test_a_verifier_that_is_not_here_is_said_before_the_run_starts() -> None:
    """As for any agent."""
    with pytest.raises(ConfigError, match=r"agent 'far', reward 'nowhere:judge'"):
        check_agents(run_of(reward="nowhere:judge"))
