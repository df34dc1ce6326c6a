"""Episodes from EpisodeOpened to EpisodeEnded: how an agent is run, and what it gets to see."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from seamlessflow.contracts import EpisodeStatus


async def test_an_agent_asks_its_model_and_is_judged(start_runner: Any, python_agents: Any) -> None:
    """The whole way: its calls are counted, all were delivered, the verifier's number is the reward."""
    world, _ = await start_runner(python_agents("ask", reward="bad_agents:verifier_counts"))

    ended = await world.run_one(prompt="hello")

    assert (ended.status, ended.reason) == (EpisodeStatus.COMPLETED, "")
    assert ended.reward == len("echo: hello")
    assert (ended.num_calls, ended.undelivered, ended.sampled_tokens) == (1, (), 7)
    assert ended.origin.task == "t1" and ended.wall_seconds > 0


@pytest.mark.parametrize(
    ("function", "length"), [("prints", len("printed")), ("awaits", len("awaited"))], ids=["prints", "coroutine"]
)
async def test_where_the_answer_comes_from(start_runner: Any, python_agents: Any, function: str, length: int) -> None:
    """What the entrypoint returns, else what it printed, stripped."""
    world, _ = await start_runner(python_agents(function, reward="bad_agents:verifier_counts"))

    assert (await world.run_one()).reward == length


async def test_a_module_that_starts_threads_is_not_forked(start_runner: Any, python_agents: Any) -> None:
    """A fork would copy locks held by threads that are not there any more."""
    agent = {**python_agents("x"), "entrypoint": "bad_agent_with_threads:run", "reward": "bad_agents:verifier_counts"}
    world, _ = await start_runner(agent)

    assert (await world.run_one()).reward == len("own interpreter: True")


async def test_a_client_made_at_import_needs_a_fresh_interpreter(start_runner: Any, python_agents: Any) -> None:
    """Forked, its module has no key yet, and the reason says what to set; with that it works."""
    client = {"entrypoint": "bad_agent_with_client:run", "reward": "bad_agents:verifier_counts"}
    world, _ = await start_runner(
        {**python_agents("x", env="forked"), **client}, {**python_agents("x", env="fresh", fresh=True), **client}
    )

    forked = await world.run_one(episode="t1-0-0", env="forked")
    fresh = await world.run_one(episode="t1-1-0", env="fresh", prompt="hello")

    assert forked.status is EpisodeStatus.NOT_STARTED and "fresh = true" in forked.reason
    assert fresh.reward == len("echo: hello"), fresh.reason


@pytest.mark.parametrize("fresh", [False, True], ids=["forked", "fresh"])
async def test_an_agent_sees_its_own_surroundings_only(
    start_runner: Any, python_agents: Any, fresh: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of the service's environment nothing but PATH; no descriptor but its own; the right answer is not in its task."""
    for name in ("SEAMLESSFLOW_NATS_URL", "SEAMLESSFLOW_NKEY_SEED", "AWS_SECRET_ACCESS_KEY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "secret")
    shown = tmp_path / "shown.json"
    agent = python_agents("tells_surroundings", fresh=fresh, reward="bad_agents:one")
    agent["environment"]["EXTRA"] = "given"
    agent["reward"] = "verifier_writes:write"
    agent["environment"]["SHOWN"] = str(shown)
    agent["environment"]["PYTHONPATH"] += os.pathsep + str(tmp_path)
    (tmp_path / "verifier_writes.py").write_text(
        "import os, pathlib\ndef write(answer, task):\n    pathlib.Path(os.environ['SHOWN']).write_text(answer)\n    return 1\n"
    )
    world, _ = await start_runner(agent)

    ended = await world.run_one(entry={"answer": "7"}, hint="visible")

    assert ended.status is EpisodeStatus.COMPLETED, ended.reason
    seen = json.loads(shown.read_text())
    environment = seen["environment"]
    expected = {
        "PATH",
        "HOME",
        "LANG",
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_API_KEY",
        "SEAMLESSFLOW_TASK",
        "PYTHONPATH",
        "EXTRA",
        "SHOWN",
    }
    assert set(environment) - {"LC_CTYPE"} == expected  # CPython itself may set LC_CTYPE
    assert "secret" not in environment.values()
    assert environment["HOME"] == seen["cwd"] and not Path(seen["cwd"]).exists()
    assert seen["session_is_own"] and seen["stdin"] == ""
    assert set(seen["descriptors"]) <= {0, 1, 2, 3, 4}  # 4 is the listing itself
    assert seen["task"]["data"] == {"hint": "visible"} and seen["task"]["prompt"] == "What is 3 + 4?"


async def test_at_most_so_many_agents_run_side_by_side(start_runner: Any, python_agents: Any, make_opened: Any) -> None:
    """fleet.agents, over all environment tags together; all episodes are done in the end."""
    world, _ = await start_runner(python_agents("ask", env="a"), python_agents("ask", env="b"), agents=3)
    side_by_side: list[int] = []
    waiting: set[str] = set()
    all_here = asyncio.Event()

    async def slow(messages: Any, request: Any) -> dict[str, Any]:
        waiting.add(request.call)
        side_by_side.append(len(waiting))
        if len(waiting) == 3:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 20)
        await asyncio.sleep(0.1)  # a fourth would have time to come
        waiting.discard(request.call)
        return {"role": "assistant", "content": "x"}

    world.manager.reply = slow
    for number in range(8):
        await world.publish(make_opened(f"t{number}-0-0", env="ab"[number % 2]))
    ends = [await world.ended(f"t{number}-0-0") for number in range(8)]

    assert {ended.status for ended in ends} == {EpisodeStatus.COMPLETED}
    assert max(side_by_side) == 3


async def test_the_demo_agents_run_as_they_are(start_runner: Any) -> None:
    """deploy/demo: single turn, self check, and the calculator with its tool."""
    agents = [
        {"env": name.replace("_", "-"), "entrypoint": f"deploy.demo.{name}:run", "reward": "deploy.demo.verifiers:last_number"}
        for name in ("single_turn", "self_check", "calculator")
    ]
    world, _ = await start_runner(*agents)

    async def sums(messages: list[dict[str, Any]], request: Any) -> dict[str, Any]:
        if request.tools and messages[-1]["role"] == "user":
            call = {"name": "calc", "arguments": '{"expression": "3 + 4"}'}
            return {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
            }
        result = messages[-1]["content"] if request.tools else {1: "I think 8", 3: "7"}[len(messages)]
        return {"role": "assistant", "content": f"The answer is {result}."}

    world.manager.reply = sums
    entry = {"answer": "7"}
    ends = {a["env"]: await world.run_one(episode=f"{a['env']}-0-0", env=a["env"], entry=entry) for a in agents}

    assert {env: (ended.reward, ended.num_calls) for env, ended in ends.items()} == {
        "single-turn": (0.0, 1),
        "self-check": (1.0, 2),
        "calculator": (1.0, 2),
    }
