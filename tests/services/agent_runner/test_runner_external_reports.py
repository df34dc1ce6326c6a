"""How episodes of agents that run elsewhere end: what is reported, by whom it is judged, and what is no report."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from seamlessflow.contracts import EpisodeEnded, EpisodeStatus
from seamlessflow_agent_runner.episodes import episode_attempt
from tests.services.agent_runner.elsewhere import RUN, Gateway, external, member

Start = Callable[..., Awaitable[tuple[Any, Gateway]]]


async def test_the_same_report_again_has_the_same_answer(start: Start) -> None:
    """Another one after it is a conflict, and changes nothing."""
    world, gateway = await start()
    await world.publish(member())
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
    await world.publish(member())
    episode = await gateway.opened()

    wrong = await gateway.end(episode, report)

    assert wrong.status_code == 400 and wrong.json()["error"]["message"]
    assert (await gateway.state(episode)).json()["state"] == "open"
    assert (await gateway.end(episode, {"reward": -2})).json()["reward"] == -2


async def test_an_agent_may_say_that_it_failed(start: Start) -> None:
    """A status with its reason, and no reward."""
    world, gateway = await start()
    await world.publish(member())
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
    await world.publish(member("t1", env="judged"))
    await world.publish(member("t2", env="broken"))
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
    await world.publish(member())
    episode = await gateway.opened()

    assert (await gateway.end(episode, {"answer": "x" * 11})).status_code == 400
    assert (await gateway.end(episode, {"answer": "x" * 10})).json()["reward"] == 10


async def test_an_episode_that_nobody_ends_is_ended_at_its_deadline(start: Start) -> None:
    """Its calls are refused from then on, and so is a late report."""
    world, gateway = await start(external(deadline_seconds=0.4))
    await world.publish(member())
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
    await world.publish(member())
    episode = await gateway.opened()

    assert (await gateway.ask(episode["base_url"], episode["api_key"])).status_code == 200
    assert (await gateway.end(episode, {"reward": 1.0})).status_code == 200


async def test_an_episode_that_the_scheduler_ended_takes_no_report(start: Start) -> None:
    """Whether the gateway has noticed it or not; the journal keeps the first end."""
    world, gateway = await start()
    for index in range(2):
        await world.publish(member(index=index))
    first, second = [await gateway.opened() for _ in range(2)]
    for index in range(2):
        event = member(index=index)
        await world.publish(
            EpisodeEnded(run=RUN, episode=event.episode, shard=0, origin=event.origin, status=EpisodeStatus.RUN_ENDED)
        )

    unnoticed = await gateway.end(first, {"reward": 1.0})
    assert unnoticed.status_code == 409 and "run_ended" in unnoticed.json()["error"]["message"]
    async with asyncio.timeout(episode_attempt.ENDED_LOOK_SECONDS + 5):
        while (await gateway.state(second)).json()["state"] != "ended":
            await asyncio.sleep(0.1)
    assert (await gateway.end(second, {"reward": 1.0})).status_code == 409


async def test_strange_bodies_are_never_a_500(start: Start) -> None:
    """On both routes that take one; no episode is lost to them."""
    world, gateway = await start()
    await world.publish(member())
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
