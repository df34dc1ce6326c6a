"""Episodes of agents that run elsewhere: how they are asked for, and what is given to whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from seamlessflow.contracts import EpisodeStarted, EpisodeStatus, RunEnded, TaskSubmitted
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow_agent_runner.external import episode_queue
from tests.services.agent_runner.elsewhere import RUN, Gateway, external, member, num_delivered

Start = Callable[..., Awaitable[tuple[Any, Gateway]]]


async def test_an_agent_elsewhere_does_an_episode(start: Start) -> None:
    """It is told what to do and where its model is; what it reports is the reward, and its calls are counted."""
    world, gateway = await start()
    await world.publish(member(entry={"answer": "7"}, hint="visible"))

    episode = await gateway.opened()
    answer = await gateway.ask(episode["base_url"], episode["api_key"])
    state = (await gateway.state(episode)).json()
    report = await gateway.end(episode, {"reward": 0.7})

    assert answer.json()["choices"][0]["message"]["content"] == "echo: hello"
    assert {name: episode[name] for name in ("episode", "task", "group", "index", "prompt", "data", "deadline_seconds")} == {
        "episode": "g-t1-0-0", "task": "t1", "group": "g-t1", "index": 0, "prompt": "do t1", "data": {"hint": "visible"},
        "deadline_seconds": 120.0,
    }  # fmt: skip
    assert (state["state"], state["num_calls"]) == ("open", 1) and 100 < state["seconds_left"] <= 120
    assert report.status_code == 200 and report.json()["status"] == "completed"
    ended = await world.ended("g-t1-0-0")
    assert (ended.status, ended.reward, ended.num_calls, ended.undelivered) == (EpisodeStatus.COMPLETED, 0.7, 1, ())
    assert (await gateway.state(episode)).json()["reward"] == 0.7


async def test_the_members_of_a_group_go_out_one_after_the_other(start: Start) -> None:
    """In the order in which they were opened, each with a key of its own."""
    world, gateway = await start()
    for task in ("t1", "t2"):
        for index in range(2):
            await world.publish(member(task, index))

    given = [await gateway.opened() for _ in range(4)]

    assert [(each["task"], each["index"]) for each in given] == [("t1", 0), ("t1", 1), ("t2", 0), ("t2", 1)]
    assert len({each["api_key"] for each in given}) == 4


async def test_asking_for_one_task_finds_it_behind_others(start: Start) -> None:
    """What was pulled before it is kept for whoever takes anything, in the old order."""
    world, gateway = await start()
    for task in ("t1", "t2", "t3"):
        await world.publish(member(task))

    found = await gateway.opened(task="t3")
    others = [await gateway.opened() for _ in range(2)]

    assert found["task"] == "t3"
    assert [each["task"] for each in others] == ["t1", "t2"]


async def test_a_search_through_a_long_queue_hands_back_what_lay_longest(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets past more episodes than lie at hand, and none of them is lost."""
    monkeypatch.setattr(episode_queue, "SHELF_SIZE", 3)
    world, gateway = await start()
    for number in range(8):
        await world.publish(member(f"t{number}"))

    assert (await gateway.opened(task="t7"))["task"] == "t7"
    assert {(await gateway.opened())["task"] for _ in range(7)} == {f"t{number}" for number in range(7)}


async def test_a_prompt_becomes_a_task(start: Start) -> None:
    """It is published, and its first member is handed out when the scheduler has admitted it; task gives the others."""
    world, gateway = await start()
    await world.publish(member("other"))
    asked = asyncio.create_task(gateway.open(prompt="Tidy up.", data={"room": 3}))
    task = await submitted(world)
    for index in range(2):
        await world.publish(member(task.task, index))

    first = (await asked).json()
    second = await gateway.opened(task=first["task"])

    assert (task.prompt, task.data, task.env, task.evaluation) == ("Tidy up.", {"room": 3}, "sums", None)
    assert [first["episode"], second["episode"]] == [f"g-{task.task}-{index}-0" for index in range(2)]


async def test_a_prompt_that_is_not_admitted_in_time_is_not_lost(start: Start) -> None:
    """The answer names the task; asking for it later gives its episodes."""
    world, gateway = await start()

    none = await gateway.open(prompt="Tidy up.", task="mine", wait_seconds=0.2)
    await world.publish(member("mine"))
    episode = await gateway.opened(prompt="Tidy up.", task="mine")

    assert (none.status_code, none.json()["task"]) == (503, "mine")
    assert episode["task"] == "mine"
    assert (await submitted(world)).task == "mine"


async def test_nothing_is_pulled_while_nobody_asks(start: Start) -> None:
    """And a request that came too early takes nothing with it."""
    world, gateway = await start()

    none = await gateway.open(wait_seconds=0.3)
    await world.publish(member())
    await asyncio.sleep(0.3)

    assert none.status_code == 503 and int(none.headers["Retry-After"]) >= 1
    assert "no episode for now" in none.json()["error"]["message"]
    assert num_delivered(world) == 0
    assert (await gateway.opened())["episode"] == "g-t1-0-0"


async def test_who_does_not_wait_gets_what_is_there(start: Start) -> None:
    """Nothing else: 503 at once."""
    world, gateway = await start()
    await world.publish(member())
    await gateway.open(wait_seconds=1, task="none-of-these")  # it is a member by now

    assert (await gateway.open(wait_seconds=0)).status_code == 201
    assert (await gateway.open(wait_seconds=0)).status_code == 503


async def test_a_request_waits_for_an_episode(start: Start) -> None:
    """Which is handed over as soon as it is opened."""
    world, gateway = await start()
    asked = asyncio.create_task(gateway.open())
    await asyncio.sleep(0.3)
    assert not asked.done()
    await world.publish(member())

    assert (await asked).json()["episode"] == "g-t1-0-0"


async def test_a_client_that_left_takes_no_episode(start: Start) -> None:
    """The next one gets it, as a first attempt."""
    world, gateway = await start()
    _, writer = await asyncio.open_connection("127.0.0.1", int(gateway.base_url.rpartition(":")[2].partition("/")[0]))
    writer.write(b"POST /episodes HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    await asyncio.sleep(0.3)
    writer.transport.abort()
    await asyncio.sleep(0.2)
    await world.publish(member())
    await asyncio.sleep(0.2)

    assert await world.manager.context.journal.first(EpisodeStarted, RUN, episode="g-t1-0-0") is None
    assert (await gateway.opened())["episode"] == "g-t1-0-0"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"env": "ours"}, 404, "external agent"),
        ({"env": "nobody"}, 404, "a, b"),
        ({}, 400, "a, b"),
        ({"env": "a", "data": {}}, 400, "prompt"),
        ({"env": "a", "prompt": ""}, 400, "prompt"),
        ({"env": "a", "prompt": " \n", "task": "t"}, 400, "prompt"),
        ({"env": "a", "prompt": "x", "task": "not a token"}, 400, "task"),
        ({"env": "a", "wait_seconds": 601}, 400, "wait_seconds"),
        ({"env": "a", "wait_seconds": True}, 400, "wait_seconds"),
        ({"env": ["a"]}, 400, "env"),
        ({"evn": "a"}, 400, "evn"),
        ({"env": "a", "run": "another", "wait_seconds": 0}, 503, "serves run r1"),
        ({"env": "a", "wait_seconds": 0}, 503, "no episode"),
    ],
)
async def test_a_request_that_cannot_be_met_says_why(start: Start, body: Any, status: int, words: str) -> None:
    """Names what there is."""
    _, gateway = await start(external("a"), external("b"), {"env": "ours", "command": ["true"]}, gateway_only=True)
    async with asyncio.timeout(20):
        while "serves no run" in (await gateway.open(env="a", wait_seconds=0)).text:
            await asyncio.sleep(0.05)

    answer = await gateway.http.post("/episodes", json=body)

    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


async def test_a_run_that_is_over_is_gone(start: Start, lease: Any) -> None:
    """So that a program elsewhere knows when to stop asking, one that waits included."""
    world, gateway = await start()
    waiting = asyncio.create_task(gateway.open(run=RUN))
    await asyncio.sleep(0.3)
    await world.publish(RunEnded(run=RUN, reason="completed", steps=3))
    await lease(world, run=None, epoch=2)

    for answer in (await waiting, await gateway.open(run=RUN)):
        assert answer.status_code == 410 and "completed" in answer.json()["error"]["message"]
    assert (await gateway.open(wait_seconds=0)).status_code == 503


async def test_so_many_episodes_are_open_side_by_side(start: Start) -> None:
    """As fleet.agents says; one that ends makes room."""
    world, gateway = await start(fleet={"agents": 2})
    for index in range(3):
        await world.publish(member(index=index))
    first, _ = [await gateway.opened() for _ in range(2)]

    none = await gateway.open(wait_seconds=0.3)
    await gateway.end(first, {"reward": 1.0})

    assert none.status_code == 503 and "fleet.agents = 2" in none.json()["error"]["message"]
    assert (await gateway.opened())["index"] == 2


async def test_agents_of_both_kinds_have_one_runner(start: Start, python_agents: Any) -> None:
    """Those it starts, and those that come to it."""
    world, gateway = await start(external("outside"), python_agents("prints", env="inside"))
    await world.publish(member("t1", env="inside"))
    await world.publish(member("t2", env="outside"))

    episode = await gateway.opened()

    assert episode["task"] == "t2"
    assert (await world.ended("g-t1-0-0")).reward == 1.0
    await gateway.end(episode, {"reward": 0.5})
    assert (await world.ended("g-t2-0-0")).reward == 0.5


async def submitted(world: Any) -> TaskSubmitted:
    """The task that was published."""
    async with asyncio.timeout(10):
        while True:
            record = await world.manager.context.bus.first(journal_stream(RUN), subject_filter(TaskSubmitted, run=RUN))
            if record is not None:
                event = await world.manager.context.journal.open(record)
                assert isinstance(event, TaskSubmitted)
                return event
            await asyncio.sleep(0.02)
