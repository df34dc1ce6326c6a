"""Who may open and end episodes of agents that run elsewhere, and where their gateway is reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from seamlessflow.contracts import EpisodeEnded, EpisodeStarted
from tests.services.agent_runner.elsewhere import RUN, Gateway, bearer, member

Start = Callable[..., Awaitable[tuple[Any, Gateway]]]


async def test_keys_open_their_own_episode_only(start: Start) -> None:
    """For reports, states and calls alike, whichever of them is over; what is unknown looks the same as what is foreign."""
    world, gateway = await start(gateway_token="the token")
    for index in range(2):
        await world.publish(member(index=index))
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
    assert await world.manager.context.journal.first(EpisodeEnded, RUN, episode=other["episode"]) is None


async def test_paths_that_name_an_episode(start: Start) -> None:
    """With its key in the path any key will do, in every dialect; with its id only its own will."""
    world, gateway = await start()
    for index in range(2):
        await world.publish(member(index=index))
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
        ({"gateway_token": "secret"}, {**bearer("dummy"), "x-api-key": "secret"}, 201),
        ({"gateway_host": "0.0.0.0"}, {}, 403),
        ({"gateway_host": "0.0.0.0"}, {"x-api-key": ""}, 403),
        ({"gateway_host": "0.0.0.0", "gateway_token": ""}, bearer("x"), 403),
        ({"gateway_host": "0.0.0.0", "gateway_token": "secret"}, bearer("secret"), 201),
    ],
)
async def test_who_may_open_episodes(start: Start, settings: Any, headers: dict[str, str], status: int) -> None:
    """Whoever has the token; without one, whoever is on this machine, but no web page or proxy; a refusal says what to set."""
    world, gateway = await start(**settings)
    await world.publish(member())

    answer = await gateway.http.post("/episodes", headers=headers)

    assert answer.status_code == status
    if status != 201:
        assert "SEAMLESSFLOW_GATEWAY_TOKEN" in answer.json()["error"]["message"]
        assert await world.manager.context.journal.first(EpisodeStarted, RUN, episode="g-t1-0-0") is None


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
    await world.publish(member())

    given = (await gateway.http.post("/episodes", headers={"Host": "agents.example:8000", **bearer("t")})).json()

    assert (given["base_url"], given["path_base_url"]) == (f"{root}/v1", f"{root}/e/{given['api_key']}/v1")
