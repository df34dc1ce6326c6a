"""Episodes of agents that run elsewhere: how they are asked for, what they get, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from seamlessflow.contracts import EpisodeEnded, EpisodeStarted, EpisodeStatus, RunEnded, TaskSubmitted
from seamlessflow.contracts.addresses import subject_filter
from seamlessflow.contracts.streams import consumer_name, journal, queue_stream
from services.agent_runner import episodes, outlet, running
from tests.services.agent_runner.elsewhere import RUN, Gateway, bearer, external, member

Start = Callable[..., Awaitable[tuple[Any, Gateway]]]


async def test_an_agent_elsewhere_does_an_episode(start: Start) -> None:
    """It is told what to do and where its model is; what it reports is the reward, and its calls are counted."""
    world, gateway = await start()
    await world.say(member(entry={"answer": "7"}, hint="visible"))

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
            await world.say(member(task, index))

    given = [await gateway.opened() for _ in range(4)]

    assert [(each["task"], each["index"]) for each in given] == [("t1", 0), ("t1", 1), ("t2", 0), ("t2", 1)]
    assert len({each["api_key"] for each in given}) == 4


async def test_asking_for_one_task_finds_it_behind_others(start: Start) -> None:
    """What was pulled before it is kept for whoever takes anything, in the old order."""
    world, gateway = await start()
    for task in ("t1", "t2", "t3"):
        await world.say(member(task))

    found = await gateway.opened(task="t3")
    others = [await gateway.opened() for _ in range(2)]

    assert found["task"] == "t3"
    assert [each["task"] for each in others] == ["t1", "t2"]


async def test_a_search_through_a_long_queue_hands_back_what_lay_longest(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets past more episodes than lie at hand, and none of them is lost."""
    monkeypatch.setattr(outlet, "SHELF_SIZE", 3)
    world, gateway = await start()
    for number in range(8):
        await world.say(member(f"t{number}"))

    assert (await gateway.opened(task="t7"))["task"] == "t7"
    assert {(await gateway.opened())["task"] for _ in range(7)} == {f"t{number}" for number in range(7)}


async def test_a_prompt_becomes_a_task(start: Start) -> None:
    """It is published, and its first member is handed out when the scheduler has admitted it; task gives the others."""
    world, gateway = await start()
    await world.say(member("other"))
    asked = asyncio.create_task(gateway.open(prompt="Tidy up.", data={"room": 3}))
    task = await submitted(world)
    for index in range(2):
        await world.say(member(task.task, index))

    first = (await asked).json()
    second = await gateway.opened(task=first["task"])

    assert (task.prompt, task.data, task.env, task.evaluation) == ("Tidy up.", {"room": 3}, "sums", None)
    assert [first["episode"], second["episode"]] == [f"g-{task.task}-{index}-0" for index in range(2)]


async def test_a_prompt_that_is_not_admitted_in_time_is_not_lost(start: Start) -> None:
    """The answer names the task; asking for it later gives its episodes."""
    world, gateway = await start()

    none = await gateway.open(prompt="Tidy up.", task="mine", wait_seconds=0.2)
    await world.say(member("mine"))
    episode = await gateway.opened(prompt="Tidy up.", task="mine")

    assert (none.status_code, none.json()["task"]) == (503, "mine")
    assert episode["task"] == "mine"
    assert (await submitted(world)).task == "mine"


async def test_nothing_is_pulled_while_nobody_asks(start: Start) -> None:
    """And a request that came too early takes nothing with it."""
    world, gateway = await start()

    none = await gateway.open(wait_seconds=0.3)
    await world.say(member())
    await asyncio.sleep(0.3)

    assert none.status_code == 503 and int(none.headers["Retry-After"]) >= 1
    assert "no episode for now" in none.json()["error"]["message"]
    assert num_delivered(world) == 0
    assert (await gateway.opened())["episode"] == "g-t1-0-0"


async def test_who_does_not_wait_gets_what_is_there(start: Start) -> None:
    """Nothing else: 503 at once."""
    world, gateway = await start()
    await world.say(member())
    await gateway.open(wait_seconds=1, task="none-of-these")  # it is a member by now

    assert (await gateway.open(wait_seconds=0)).status_code == 201
    assert (await gateway.open(wait_seconds=0)).status_code == 503


async def test_a_request_waits_for_an_episode(start: Start) -> None:
    """Which is handed over as soon as it is opened."""
    world, gateway = await start()
    asked = asyncio.create_task(gateway.open())
    await asyncio.sleep(0.3)
    assert not asked.done()
    await world.say(member())

    assert (await asked).json()["episode"] == "g-t1-0-0"


async def test_a_client_that_left_takes_no_episode(start: Start) -> None:
    """The next one gets it, as a first attempt."""
    world, gateway = await start()
    _, writer = await asyncio.open_connection("127.0.0.1", int(gateway.base_url.rpartition(":")[2].partition("/")[0]))
    writer.write(b"POST /episodes HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    await asyncio.sleep(0.3)
    writer.transport.abort()
    await asyncio.sleep(0.2)
    await world.say(member())
    await asyncio.sleep(0.2)

    assert await world.manager.context.speaker.first(EpisodeStarted, RUN, episode="g-t1-0-0") is None
    assert (await gateway.opened())["episode"] == "g-t1-0-0"


async def test_the_same_report_again_has_the_same_answer(start: Start) -> None:
    """Another one after it is a conflict, and changes nothing."""
    world, gateway = await start()
    await world.say(member())
    episode = await gateway.opened()

    first = await gateway.end(episode, {"reward": 1})
    again = await gateway.end(episode, b'{"reward": 1.0}')
    other = await gateway.end(episode, {"reward": 0.5})
    failed = await gateway.end(episode, {"failed": "changed my mind"})

    assert (first.status_code, again.status_code, again.json()) == (200, 200, first.json())
    assert (other.status_code, failed.status_code) == (409, 409)
    assert "ended before as completed" in other.json()["error"]["message"]
    assert (await world.ended("g-t1-0-0")).reward == 1.0


@pytest.mark.parametrize(
    "report",
    [b'{"reward": NaN}', b'{"reward": Infinity}', b'{"reward": 1e999}', b'{"reward": "0.5"}', b'{"reward": true}',
     b'{"reward": null}', b"{}", b"", b"[1]", b'{"reward": 1, "answer": "x"}', b'{"reword": 1}', b'{"answer": "7"}',
     b'{"reward": ' + b"9" * 400 + b"}", b'{"failed": 3}', b"\xff\xfe"],
)  # fmt: skip
async def test_a_report_that_is_none_changes_nothing(start: Start, report: bytes) -> None:
    """400 says why; the episode goes on and is ended by the next one."""
    world, gateway = await start()
    await world.say(member())
    episode = await gateway.opened()

    wrong = await gateway.end(episode, report)

    assert wrong.status_code == 400 and wrong.json()["error"]["message"]
    assert (await gateway.state(episode)).json()["state"] == "open"
    assert (await gateway.end(episode, {"reward": -2})).json()["reward"] == -2


async def test_an_agent_may_say_that_it_failed(start: Start) -> None:
    """A status with its reason, and no reward."""
    world, gateway = await start()
    await world.say(member())
    episode = await gateway.opened()

    assert (await gateway.end(episode, {"failed": "the browser crashed"})).status_code == 200
    ended = await world.ended("g-t1-0-0")
    assert (ended.status, ended.reason, ended.reward) == (EpisodeStatus.AGENT_FAILED, "the browser crashed", None)


async def test_a_verifier_judges_answers_from_elsewhere(start: Start, python_agents: Any) -> None:
    """With a verifier nobody says its own reward; one that breaks ends the episode without one."""
    judged = {**python_agents("x", env="judged", reward="bad_agents:verifier_counts"), "external": True}
    broken = {**python_agents("x", env="broken", reward="bad_agents:verifier_raises"), "external": True}
    for agent in (judged, broken):
        del agent["entrypoint"]
    world, gateway = await start(judged, broken)
    await world.say(member("t1", env="judged"))
    await world.say(member("t2", env="broken"))
    good, bad = await gateway.opened(env="judged"), await gateway.opened(env="broken")

    assert (await gateway.end(good, {"reward": 1.0})).status_code == 400
    assert (await gateway.end(good, {"answer": "four"})).json()["reward"] == 4.0
    answer = await gateway.end(bad, {"answer": "four"})
    assert (answer.status_code, answer.json()["status"], answer.json()["reward"]) == (200, "verifier_failed", None)


async def test_an_answer_longer_than_allowed_is_refused(start: Start, python_agents: Any) -> None:
    """As output_bytes says, before it is judged."""
    agent = {**python_agents("x", reward="bad_agents:verifier_counts", output_bytes=10), "external": True}
    del agent["entrypoint"]
    world, gateway = await start(agent)
    await world.say(member())
    episode = await gateway.opened()

    assert (await gateway.end(episode, {"answer": "x" * 11})).status_code == 400
    assert (await gateway.end(episode, {"answer": "x" * 10})).json()["reward"] == 10


async def test_an_episode_that_nobody_ends_is_ended_at_its_deadline(start: Start) -> None:
    """Its calls are refused from then on, and so is a late report."""
    world, gateway = await start(external(deadline_seconds=0.4))
    await world.say(member())
    episode = await gateway.opened()

    ended = await world.ended("g-t1-0-0")
    late = await gateway.end(episode, {"reward": 1.0})

    assert (ended.status, ended.reward) == (EpisodeStatus.DEADLINE, None) and "0.4 s" in ended.reason
    assert (late.status_code, (await gateway.ask(episode["base_url"], episode["api_key"])).status_code) == (409, 409)


async def test_waiting_for_the_model_is_not_the_agents_time(start: Start) -> None:
    """A call that takes longer than the deadline ends nothing."""
    world, gateway = await start(external(deadline_seconds=0.8))

    async def late(messages: Any, request: Any) -> dict[str, Any]:
        await asyncio.sleep(1.6)
        return {"role": "assistant", "content": "late"}

    world.manager.reply = late
    await world.say(member())
    episode = await gateway.opened()

    assert (await gateway.ask(episode["base_url"], episode["api_key"])).status_code == 200
    assert (await gateway.end(episode, {"reward": 1.0})).status_code == 200


async def test_keys_open_their_own_episode_only(start: Start) -> None:
    """For reports, states and calls alike, whichever of them is over; what is unknown looks the same as what is foreign."""
    world, gateway = await start(gateway_token="the token")
    for index in range(2):
        await world.say(member(index=index))
    one, other = [(await gateway.open(token="the token")).json() for _ in range(2)]
    unknown = {**one, "episode": "g-t9-0-0"}

    for key in (other["api_key"], None, "wrong", "sf-"):
        for target in (one, unknown):
            refused = [await gateway.end(target, {"reward": 1.0}, key=key), await gateway.state(target, key=key)]
            assert [each.status_code for each in refused] == [401, 401]
            assert target["episode"] not in refused[0].text
    assert (await gateway.end(unknown, {"reward": 1.0}, key="the token")).status_code == 404
    assert (await gateway.state(one, key="the token")).status_code == 200
    assert (await gateway.end(one, {"reward": 1.0}, key="the token")).status_code == 200
    assert (await gateway.end(one, {"reward": 1.0}, key=other["api_key"])).status_code == 401
    assert (await gateway.state(other)).json()["state"] == "open"
    assert await world.manager.context.speaker.first(EpisodeEnded, RUN, episode=other["episode"]) is None


async def test_paths_that_name_an_episode(start: Start) -> None:
    """With its key in the path any key will do, in every dialect; with its id only its own will."""
    world, gateway = await start()
    for index in range(2):
        await world.say(member(index=index))
    one, other = [await gateway.opened() for _ in range(2)]
    by_key, by_name = one["path_base_url"], one["base_url"].removesuffix("/v1") + f"/e/{one['episode']}/v1"

    for key in (None, "sk-from-a-file", other["api_key"]):
        assert (await gateway.ask(by_key, key)).status_code == 200
    assert (await gateway.ask(by_name, one["api_key"])).status_code == 200
    for key in (None, "sk-from-a-file", other["api_key"]):
        assert (await gateway.ask(by_name, key)).status_code == 401
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
    claude = await gateway.http.post(f"{by_key}/messages", json=body)
    assert claude.json()["content"][0]["text"] == "echo: hello"
    assert (await gateway.http.get(f"{by_key}/models")).status_code == 200

    assert (await gateway.end(one, {"reward": 1.0})).json()["num_calls"] == 5
    assert (await gateway.end(other, {"reward": 0.0})).json()["num_calls"] == 0
    assert [(await gateway.ask(by_key, None)).status_code, (await gateway.ask(by_name, one["api_key"])).status_code] == [
        409,
        409,
    ]


@pytest.mark.parametrize(
    ("settings", "headers", "status"),
    [
        ({}, {}, 201),
        ({}, {"Origin": "https://elsewhere.example"}, 403),
        ({}, {"X-Forwarded-For": "203.0.113.9"}, 403),
        ({}, {"forwarded": "for=203.0.113.9"}, 403),
        ({}, {"Via": "1.1 proxy"}, 403),
        ({"gateway_url": "http://localhost:8000"}, {}, 201),
        ({"gateway_token": "secret"}, {}, 401),
        ({"gateway_token": "secret"}, bearer("wrong"), 401),
        ({"gateway_token": "secret"}, bearer("secret"), 201),
        ({"gateway_token": "secret"}, {**bearer("secret"), "X-Forwarded-For": "203.0.113.9"}, 201),
        ({"gateway_token": "secret"}, {"x-api-key": "secret"}, 201),
        ({"gateway_host": "0.0.0.0"}, {}, 403),
        ({"gateway_host": "0.0.0.0"}, {"x-api-key": ""}, 403),
        ({"gateway_host": "0.0.0.0", "gateway_token": ""}, bearer("x"), 403),
        ({"gateway_host": "0.0.0.0", "gateway_token": "secret"}, bearer("secret"), 201),
    ],
)
async def test_who_may_open_episodes(start: Start, settings: Any, headers: dict[str, str], status: int) -> None:
    """Whoever has the token; without one, whoever is on this machine, but no web page or proxy; a refusal says what to set."""
    world, gateway = await start(**settings)
    await world.say(member())

    answer = await gateway.http.post("/episodes", headers=headers)

    assert answer.status_code == status
    if status != 201:
        assert "SEAMLESSFLOW_GATEWAY_TOKEN" in answer.json()["error"]["message"]
        assert await world.manager.context.speaker.first(EpisodeStarted, RUN, episode="g-t1-0-0") is None


@pytest.mark.parametrize(
    ("settings", "root"),
    [
        ({"gateway_token": "t"}, "http://agents.example:8000"),
        ({"gateway_token": "t", "gateway_url": "https://far.example/"}, "https://far.example"),
    ],
)
async def test_a_gateway_says_where_it_is_reached(start: Start, settings: Any, root: str) -> None:
    """By the address it was called by, or the one it was given."""
    world, gateway = await start(**settings)
    await world.say(member())

    given = (await gateway.http.post("/episodes", headers={"Host": "agents.example:8000", **bearer("t")})).json()

    assert (given["base_url"], given["path_base_url"]) == (f"{root}/v1", f"{root}/e/{given['api_key']}/v1")


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
    await world.say(RunEnded(run=RUN, reason="completed", steps=3))
    await lease(world, run=None, epoch=2)

    for answer in (await waiting, await gateway.open(run=RUN)):
        assert answer.status_code == 410 and "completed" in answer.json()["error"]["message"]
    assert (await gateway.open(wait_seconds=0)).status_code == 503


async def test_so_many_episodes_are_open_side_by_side(start: Start) -> None:
    """As fleet.agents says; one that ends makes room."""
    world, gateway = await start(fleet={"agents": 2})
    for index in range(3):
        await world.say(member(index=index))
    first, _ = [await gateway.opened() for _ in range(2)]

    none = await gateway.open(wait_seconds=0.3)
    await gateway.end(first, {"reward": 1.0})

    assert none.status_code == 503 and "fleet.agents = 2" in none.json()["error"]["message"]
    assert (await gateway.opened())["index"] == 2


async def test_agents_of_both_kinds_have_one_runner(start: Start, python_agents: Any) -> None:
    """Those it starts, and those that come to it."""
    world, gateway = await start(external("outside"), python_agents("prints", env="inside"))
    await world.say(member("t1", env="inside"))
    await world.say(member("t2", env="outside"))

    episode = await gateway.opened()

    assert episode["task"] == "t2"
    assert (await world.ended("g-t1-0-0")).reward == 1.0
    await gateway.end(episode, {"reward": 0.5})
    assert (await world.ended("g-t2-0-0")).reward == 0.5


async def test_an_episode_that_an_earlier_runner_started_is_lost_and_the_next_is_given(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked never notices."""
    monkeypatch.setattr(outlet, "PATROL_SECONDS", 0.3)
    monkeypatch.setattr(running, "DOUBT_SECONDS", 0.2)
    world, gateway = await start()
    lost = member()
    await world.say(lost)
    await world.say(EpisodeStarted(run=RUN, episode=lost.episode, runner="earlier"))
    over = member(index=1)
    await world.say(EpisodeEnded(run=RUN, episode=over.episode, shard=0, origin=over.origin, status=EpisodeStatus.RUN_ENDED))
    await world.say(over)
    await world.say(member(index=2))

    assert (await gateway.opened())["index"] == 2
    assert (await world.ended(lost.episode)).status is EpisodeStatus.RUNNER_LOST
    assert await world.manager.context.speaker.first(EpisodeStarted, RUN, episode=over.episode) is None


async def test_a_stopped_gateway_hands_back_and_says_what_is_lost(start: Start) -> None:
    """Episodes at hand go to the next gateway as they are; open ones are lost; who waits is told."""
    world, gateway = await start()
    for task in ("t1", "t2", "t3"):
        await world.say(member(task))
    episode = await gateway.opened(task="t2")  # t1 is at hand now
    waiting = asyncio.create_task(gateway.open(task="t9"))
    await asyncio.sleep(0.3)

    await gateway.stop()

    ended = await world.ended(episode["episode"])
    assert (ended.status, ended.reward) == (EpisodeStatus.RUNNER_LOST, None)
    assert (await waiting).status_code == 503
    _, second = await start(world=world)
    assert {(await second.opened())["episode"] for _ in range(2)} == {"g-t1-0-0", "g-t3-0-0"}


async def test_what_nobody_comes_for_is_handed_back(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """An episode that was pulled while another was looked for does not lie at one gateway while it is wanted at the next."""
    monkeypatch.setattr(outlet, "SHELF_SECONDS", 0.3)
    world, first = await start(gateway_only=True)
    _, second = await start(world=world, gateway_only=True)
    await world.say(member())
    await first.open(task="none-of-these", wait_seconds=0.5)
    assert num_delivered(world) == 1

    assert (await second.opened())["episode"] == "g-t1-0-0"


async def test_after_a_killed_gateway_an_agent_opens_a_new_episode(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old key is unknown; its episode is said to be lost by the one that takes over."""
    monkeypatch.setattr(running, "DOUBT_SECONDS", 0.2)
    world, gateway = await start()
    await world.say(member())
    episode = await gateway.opened()
    await gateway.kill()
    _, second = await start(world=world)

    asked = asyncio.create_task(second.open(wait_seconds=20))
    ended = await world.ended(episode["episode"])
    await world.say(member(attempt=1))

    assert ended.status is EpisodeStatus.RUNNER_LOST
    assert (await asked).json()["attempt"] == 1
    assert (await second.ask(f"{second.base_url}", episode["api_key"])).status_code == 401
    assert (await second.end(episode, {"reward": 1.0})).status_code == 401


async def test_an_episode_that_the_scheduler_ended_takes_no_report(start: Start) -> None:
    """Whether the gateway has noticed it or not; the journal keeps the first end."""
    world, gateway = await start()
    for index in range(2):
        await world.say(member(index=index))
    first, second = [await gateway.opened() for _ in range(2)]
    for index in range(2):
        event = member(index=index)
        await world.say(
            EpisodeEnded(run=RUN, episode=event.episode, shard=0, origin=event.origin, status=EpisodeStatus.RUN_ENDED)
        )

    unnoticed = await gateway.end(first, {"reward": 1.0})
    assert unnoticed.status_code == 409 and "run_ended" in unnoticed.json()["error"]["message"]
    async with asyncio.timeout(episodes.ENDED_LOOK_SECONDS + 5):
        while (await gateway.state(second)).json()["state"] != "ended":
            await asyncio.sleep(0.1)
    assert (await gateway.end(second, {"reward": 1.0})).status_code == 409


async def test_strange_bodies_are_never_a_500(start: Start) -> None:
    """On both routes that take one; no episode is lost to them."""
    world, gateway = await start()
    await world.say(member())
    episode = await gateway.opened()
    values: list[Any] = [None, 0, -1, 1e308, "", "x" * 1000, [], {}, [[]], {"a": {"b": []}}, True, "\u0000", 2**63]
    names = ["run", "env", "task", "prompt", "data", "reward", "answer", "failed", "é"]
    fields = [(name, value) for name in names for value in values if not is_report(name, value)]
    bodies = [json.dumps({name: value, "wait_seconds": 0}).encode() for name, value in fields]
    bodies += [b"{", b'{"a":' * 5000, b"\x00", b"null", b'"x"', b'{"env": "\\ud800"}']

    statuses = set()
    for body in bodies:
        statuses.add((await gateway.http.post("/episodes", content=body)).status_code)
        statuses.add((await gateway.end(episode, body)).status_code)

    assert statuses <= {400, 404, 503}
    assert (await gateway.end(episode, {"reward": 1.0})).status_code == 200


def is_report(name: str, value: Any) -> bool:
    """Whether it would end an episode whose agent reports its reward."""
    return isinstance(value, str) if name == "failed" else name == "reward" and type(value) in (int, float)


async def submitted(world: Any) -> TaskSubmitted:
    """The task that was published."""
    async with asyncio.timeout(10):
        while True:
            record = await world.manager.context.bus.first(journal(RUN), subject_filter(TaskSubmitted, run=RUN))
            if record is not None:
                event = await world.manager.context.speaker.open(record)
                assert isinstance(event, TaskSubmitted)
                return event
            await asyncio.sleep(0.02)


def num_delivered(world: Any) -> int:
    """Episodes that are, or were, in somebody's hands."""
    queue = world.server.consumer(queue_stream("agent-runner", RUN), consumer_name("agent-runner", "sums"))
    return len(queue._num_delivered)
