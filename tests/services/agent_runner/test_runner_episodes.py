"""Episodes from EpisodeOpened to EpisodeEnded: what each way of ending is called, and what an agent gets to see."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from seamlessflow.contracts import EpisodeEnded, EpisodeStarted, EpisodeStatus

HERE = Path(__file__).parent


async def test_an_agent_asks_its_model_and_is_judged(start_runner: Any, python_agents: Any) -> None:
    """The whole way: its calls are counted, all were delivered, the verifier's number is the reward."""
    world, _ = await start_runner(python_agents("ask", reward="bad_agents:verifier_counts"))

    ended = await world.run_one(prompt="hello")

    assert (ended.status, ended.reason) == (EpisodeStatus.COMPLETED, "")
    assert ended.reward == len("echo: hello")
    assert (ended.num_calls, ended.undelivered) == (1, ())
    assert ended.origin.task == "t1" and ended.wall_seconds > 0


@pytest.mark.parametrize(
    ("function", "length"), [("prints", len("printed")), ("awaits", len("awaited"))], ids=["prints", "coroutine"]
)
async def test_where_the_answer_comes_from(start_runner: Any, python_agents: Any, function: str, length: int) -> None:
    """What the entrypoint returns, else what it printed, stripped."""
    world, _ = await start_runner(python_agents(function, reward="bad_agents:verifier_counts"))

    assert (await world.run_one()).reward == length


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


async def test_an_episode_that_another_runner_started_is_lost(start_runner: Any, python_agents: Any, make_opened: Any) -> None:
    """Its agent died with that runner; a new attempt is the scheduler's to open."""
    world, _ = await start_runner(python_agents("prints"))
    event = make_opened()
    await world.say(EpisodeStarted(run=event.run, episode=event.episode, runner="earlier"))

    ended = await world.run_one()

    assert (ended.status, ended.reward) == (EpisodeStatus.RUNNER_LOST, None)
    assert "earlier agent-runner died" in ended.reason


async def test_an_episode_that_has_ended_is_not_run(start_runner: Any, python_agents: Any, make_opened: Any) -> None:
    """Opened twice, or ended by the scheduler before anybody took it."""
    world, _ = await start_runner(python_agents("prints"))
    event = make_opened("t9-0-0")
    await world.say(EpisodeEnded(run="r1", episode="t9-0-0", shard=0, origin=event.origin, status=EpisodeStatus.RUN_ENDED))
    await world.say(event)
    await world.run_one()

    assert await world.manager.context.speaker.first(EpisodeStarted, "r1", episode="t9-0-0") is None


async def test_stopping_the_runner_ends_agents_quickly_and_says_so(
    start_runner: Any, python_agents: Any, make_opened: Any
) -> None:
    """SIGTERM: no agent stays, every started episode gets its end, no reward."""
    world, running = await start_runner(python_agents("hangs_with_daemon"))
    await world.say(make_opened())
    await until_started(world)
    began = time.monotonic()

    await running.stop()

    ended = await world.ended()
    assert (ended.status, ended.reward) == (EpisodeStatus.RUNNER_LOST, None) and "stops" in ended.reason
    assert time.monotonic() - began < 5
    assert await processes_gone("sleep 1000")


async def test_losing_the_lease_ends_agents_and_a_new_lease_starts_again(
    start_runner: Any, python_agents: Any, make_opened: Any, lease: Any
) -> None:
    """The runner stays up, idle in between."""
    world, _ = await start_runner(python_agents("hangs"))
    await world.say(make_opened())
    await until_started(world)

    await lease(world, run=None, epoch=2)
    assert (await world.ended()).status is EpisodeStatus.RUNNER_LOST

    await lease(world, epoch=3)
    await world.say(make_opened("t1-1-0"))
    await until_started(world, "t1-1-0")


async def test_an_agent_whose_episode_the_scheduler_ended_is_killed(
    start_runner: Any, python_agents: Any, make_opened: Any
) -> None:
    """Within a few seconds, without a second EpisodeEnded."""
    world, _ = await start_runner(python_agents("hangs"))
    event = make_opened()
    await world.say(event)
    await until_started(world)
    await world.say(EpisodeEnded(run="r1", episode=event.episode, shard=0, origin=event.origin, status=EpisodeStatus.RUN_ENDED))

    assert await processes_gone("sleep 1000", seconds=8)
    assert (await world.ended()).status is EpisodeStatus.RUN_ENDED


async def test_a_dead_zygote_is_replaced_and_its_agents_are_lost(
    start_runner: Any, python_agents: Any, make_opened: Any
) -> None:
    """kill -9 of the process agents are forked from: they die too, and the next episode runs."""
    world, _ = await start_runner(python_agents("hangs"))
    await world.say(make_opened())
    await until_started(world)
    await asyncio.sleep(0.3)
    for pid in pids_of("zygote", below=children_of(os.getpid())):
        os.kill(pid, 9)

    ended = await world.ended()
    assert ended.status is EpisodeStatus.RUNNER_LOST and "forked from died" in ended.reason
    assert await processes_gone("sleep 1000")
    await world.say(make_opened("t1-1-0"))
    await until_started(world, "t1-1-0")


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
        await world.say(make_opened(f"t{number}-0-0", env="ab"[number % 2]))
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


async def until_started(world: Any, episode: str = "t1-0-0") -> None:
    async with asyncio.timeout(20):
        while await world.manager.context.speaker.first(EpisodeStarted, "r1", episode=episode) is None:
            await asyncio.sleep(0.02)


def matches(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.DOTALL) is not None


def own_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def children_of(*pids: int) -> set[int]:
    return {pid for pid, parent in parents().items() if parent in pids}


def descendants() -> set[int]:
    """All processes below this one; adopted ones stay below their zygote."""
    found: set[int] = {os.getpid()}
    while more := children_of(*found) - found:
        found |= more
    return found - {os.getpid()}


def pids_of(words: str, *, below: set[int] | None = None) -> list[int]:
    """Processes with these words in their command line."""
    fitting = []
    for pid in descendants() if below is None else below:
        with suppress(OSError):
            if words.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "):
                fitting.append(pid)
    return fitting


async def processes_gone(words: str, *, seconds: float = 4.0) -> bool:
    deadline = time.monotonic() + seconds
    while pids_of(words):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True
