"""Agents that are commands: any program, in any language, without a shell."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from seamlessflow.contracts import EpisodeStatus

HERE = Path(__file__).parent


async def test_a_command_gets_its_prompt_without_a_shell(start_runner: Any) -> None:
    """Whatever the prompt holds is one argument."""
    agent = {"env": "sums", "command": ["printf", "%s", "{prompt}"], "reward": "bad_agents:verifier_counts"}
    world, _ = await start_runner({**agent, "environment": {"PYTHONPATH": str(HERE)}})
    prompt = "$(touch /tmp/no) ; 'x' \"{checkout}\""

    assert (await world.run_one(prompt=prompt)).reward == len(prompt)


async def test_a_missing_program_is_not_started(start_runner: Any) -> None:
    """The reason names it."""
    world, _ = await start_runner({"env": "sums", "command": ["no-such-program-here"]})

    ended = await world.run_one()

    assert ended.status is EpisodeStatus.NOT_STARTED and "no-such-program-here" in ended.reason


async def test_a_prompt_too_long_for_a_command_line_is_not_started(start_runner: Any) -> None:
    """The reason says what to do instead; the next episode is not harmed."""
    world, _ = await start_runner({"env": "sums", "command": ["true", "{prompt}"], "reward": "bad_agents:one",
                                   "environment": {"PYTHONPATH": str(HERE)}})  # fmt: skip

    ended = await world.run_one(prompt="x" * 3_000_000)
    after = await world.run_one(episode="t1-1-0")

    assert ended.status is EpisodeStatus.NOT_STARTED and "SEAMLESSFLOW_TASK" in ended.reason
    assert after.status is EpisodeStatus.COMPLETED


LANGUAGES = {
    "sh and curl": ("curl", ["sh", "-c", """
        curl -s "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" \\
             -d '{"model": "m", "messages": [{"role": "user", "content": "from sh"}]}' | grep -o 'echo: from sh'"""]),
    "node": ("node", ["node", "-e", """
        fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {method: "POST",
              headers: {"Authorization": "Bearer " + process.env.OPENAI_API_KEY},
              body: JSON.stringify({model: "m", messages: [{role: "user", content: "from node"}]})})
          .then(r => r.json()).then(a => console.log(a.choices[0].message.content))"""]),
}  # fmt: skip


@pytest.mark.parametrize("language", LANGUAGES)
async def test_an_agent_in_another_language(start_runner: Any, language: str) -> None:
    """Anything that speaks HTTP is an agent."""
    program, command = LANGUAGES[language]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    agent = {"env": "sums", "command": command, "reward": "bad_agents:verifier_counts"}
    world, _ = await start_runner({**agent, "environment": {"PYTHONPATH": str(HERE)}})

    ended = await world.run_one()

    assert ended.reward == len(f"echo: from {language.split()[0]}"), ended.reason
