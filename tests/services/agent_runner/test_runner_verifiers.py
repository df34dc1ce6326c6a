"""Answers and who judges them: a broken verifier gives no reward, and harms nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seamlessflow.contracts import EpisodeStatus

HERE = Path(__file__).parent


VERIFIERS = {
    "verifier_raises": "raised KeyError",
    "verifier_exits": "raised SystemExit",
    "verifier_gives_nan": "returned nan",
    "verifier_gives_inf": "returned inf",
    "verifier_gives_text": "returned str '1.0'",
    "verifier_gives_none": "returned NoneType",
    "verifier_dies": "process died",
    "no_such_verifier": "no attribute",
}


@pytest.mark.parametrize("verifier", VERIFIERS)
async def test_a_broken_verifier_gives_no_reward(start_runner: Any, python_agents: Any, verifier: str) -> None:
    """It is the verifier's failure and not the agent's."""
    world, _ = await start_runner(python_agents("prints", reward=f"bad_agents:{verifier}"))

    ended = await world.run_one()

    assert (ended.status, ended.reward) == (EpisodeStatus.VERIFIER_FAILED, None)
    assert VERIFIERS[verifier] in ended.reason


async def test_a_hung_verifier_is_killed_and_the_next_answer_is_judged(start_runner: Any) -> None:
    """After its time limit; what it would have said later is nobody's reward."""
    agent = {"env": "sums", "command": ["printf", "{prompt}"], "reward": "bad_agents:verifier_hangs"}
    world, _ = await start_runner({**agent, "environment": {"PYTHONPATH": str(HERE)}})

    hung = await world.run_one(prompt="hang")
    well = await world.run_one(episode="t1-1-0", prompt="work")

    assert (hung.status, hung.reward) == (EpisodeStatus.VERIFIER_FAILED, None)
    assert "did not answer for 3 s" in hung.reason
    assert well.reward == 0.5


async def test_reasoning_gym_judges_its_own_entries(start_runner: Any) -> None:
    """The data set's scorer on the entry that came with the task; without one there is no reward."""
    agent = {"env": "sums", "command": ["echo", "{prompt}"], "reward": "reasoning_gym"}
    world, _ = await start_runner(agent)
    entry = {"question": "3 + 4 =", "answer": "7", "metadata": {"source_dataset": "chain_sum"}}

    right = await world.run_one(prompt="7", entry=entry)
    wrong = await world.run_one(episode="t1-1-0", prompt="8", entry=entry)
    without = await world.run_one(episode="t1-2-0", prompt="7")

    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert without.status is EpisodeStatus.VERIFIER_FAILED and "entry" in without.reason
