"""Tasks for an environment that the run does not have are refused before any is published."""

from __future__ import annotations

import pytest

from seamlessflow.cli.submit import require_known_envs
from seamlessflow.contracts import TaskSubmitted
from seamlessflow.errors import ConfigError


def task(name: str, env: str) -> TaskSubmitted:
    return TaskSubmitted(run="r", task=name, env=env, prompt="x")


def test_tasks_that_nobody_would_do_are_named() -> None:
    """With what there is."""
    with pytest.raises(ConfigError) as refused:
        require_known_envs([task("t1", "sums"), task("t2", "sum")], ["words", "sums"])

    said = str(refused.value)
    assert "nothing was published: the run's environments are sums, words" in said
    assert "task t2: env 'sum'" in said and "t1" not in said


def test_tasks_of_the_run_are_let_through() -> None:
    """All of them known."""
    require_known_envs([task("t1", "sums")], ["sums"])
