"""Episodes of agents elsewhere when something is slow, away or gone: none is lost, held for nobody, or left open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from seamlessflow.contracts import EpisodeEnded, EpisodeStarted, EpisodeStatus, Service, TaskSubmitted
from seamlessflow.contracts.streams import consumer_name, queue_stream
from seamlessflow.errors import ConfigError, Unavailable
from seamlessflow_agent_runner.episodes import episode_attempt, local_episode
from seamlessflow_agent_runner.external import episode_queue
from seamlessflow_agent_runner.gateway.auth import Access
from tests.services.agent_runner.elsewhere import RUN, Gateway, member, num_delivered

Start = Callable[..., Awaitable[tuple[Any, Gateway]]]
EPISODE = "g-t1-0-0"


@pytest.mark.parametrize("host", ["Host: \r\n", "Host: x:99999\r\n", "Host: x:abc\r\n"])
async def test_a_host_header_that_is_none_takes_no_episode(start: Start, host: str) -> None:
    """400, and the next one gets it, as a first attempt."""
    world, gateway = await start()
    await world.publish(member())

    answer = await said_to(gateway, f"POST /episodes HTTP/1.1\r\n{host}Content-Length: 0\r\nConnection: close\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400") and b"SEAMLESSFLOW_GATEWAY_URL" in answer
    assert (await gateway.opened())["episode"] == EPISODE


async def test_an_episode_that_cannot_be_told_of_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever went wrong after it was started: its place is free again at once."""
    from seamlessflow_agent_runner.gateway import episode_routes

    world, gateway = await start()
    await world.publish(member())
    monkeypatch.setattr(episode_routes, "task_for_agent", lambda opened: 1 / 0)

    assert (await gateway.open()).status_code == 500
    assert (await world.ended(EPISODE, seconds=5)).status is EpisodeStatus.RUNNER_LOST


@pytest.mark.parametrize("task", [None, "another"])
async def test_what_a_killed_gateway_held_is_ended_though_nobody_asks_for_it(
    start: Start, monkeypatch: pytest.MonkeyPatch, task: str | None
) -> None:
    """All of it, whether nobody asks at all or somebody for something else; what nobody held stays as it is."""
    monkeypatch.setattr(episode_queue, "PATROL_SECONDS", 0.3)
    monkeypatch.setattr(local_episode, "DOUBT_SECONDS", 0.2)
    world, gateway = await start()
    asking = [] if task is None else [asyncio.create_task(gateway.open(task=task, wait_seconds=3))]
    for index in range(3):
        await world.publish(EpisodeStarted(run=RUN, episode=f"g-t1-{index}-0", runner="killed"))
    for index in range(4):
        await world.publish(member(index=index))

    for index in range(3):
        assert (await world.ended(f"g-t1-{index}-0", seconds=5)).status is EpisodeStatus.RUNNER_LOST
    assert (await gateway.opened(task="t1"))["index"] == 3
    assert [(await each).status_code for each in asking] == [503] * len(asking)


async def test_a_gateway_that_was_only_cut_off_keeps_its_episodes(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage all that it holds is given to others; they hand it back, and it shows that it lives."""
    monkeypatch.setattr(episode_queue, "PATROL_SECONDS", 0.3)
    world, first = await start(gateway_only=True)
    await world.publish(member())
    episode = await first.opened()
    await start(world=world, gateway_only=True)
    queue = world.server.consumer(queue_stream(Service.AGENT_RUNNER, RUN), consumer_name(Service.AGENT_RUNNER, "sums"))

    (seq,) = queue._num_delivered
    queue.hand_back(seq, 0.0)
    async with asyncio.timeout(5):
        while queue._num_delivered[seq] < 2:
            await asyncio.sleep(0.02)
    await asyncio.sleep(local_episode.DOUBT_SECONDS + 1.0)

    assert (await first.end(episode, {"reward": 0.5})).status_code == 200


async def test_a_patrol_hands_back_at_once_what_it_finds(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes stay in the queue for whoever asks, at another gateway too."""
    monkeypatch.setattr(episode_queue, "PATROL_SECONDS", 0.1)
    world, _ = await start(gateway_only=True)
    for index in range(3):
        await world.publish(member(index=index))
    await asyncio.sleep(1.0)
    monkeypatch.setattr(episode_queue, "PATROL_SECONDS", 60)
    _, second = await start(world=world, gateway_only=True)

    async with asyncio.timeout(5):
        assert {(await second.opened())["index"] for _ in range(3)} == {0, 1, 2}


async def test_a_search_for_what_is_not_there_leaves_the_rest_to_other_gateways(start: Start) -> None:
    """They wait a few seconds at most, again and again."""
    world, first = await start(gateway_only=True)
    for number in range(10):
        await world.publish(member(f"t{number}"))
    search = asyncio.create_task(first.open(task="none-of-these", wait_seconds=30))
    await asyncio.sleep(0.5)
    _, second = await start(world=world, gateway_only=True)

    for _ in range(2):
        async with asyncio.timeout(episode_queue.SHELF_SECONDS + 3):
            await second.opened(wait_seconds=20)
    search.cancel()
    assert episode_queue.SHELF_SECONDS <= 2


async def test_a_reward_outlives_an_outage_of_the_journal(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said when the journal is back; the report and its repetition meanwhile wait for that."""
    monkeypatch.setattr(episode_attempt, "PUBLISH_RETRY_SECONDS", 0.1)
    world, gateway = await start()
    await world.publish(member())
    episode = await gateway.opened()
    outage = Outage(gateway, EpisodeEnded, monkeypatch)

    report = asyncio.create_task(gateway.end(episode, {"reward": 0.5}))
    await asyncio.sleep(0.4)
    again = asyncio.create_task(gateway.end(episode, {"reward": 0.5}))
    other = await gateway.end(episode, {"reward": 0.6})
    shown = (await gateway.state(episode)).json()["state"]
    outage.is_on = False

    assert (other.status_code, shown) == (409, "judging")
    assert outage.num_tries > 1
    assert [(await each).json()["reward"] for each in (report, again)] == [0.5, 0.5]
    assert (await world.ended(EPISODE)).reward == 0.5


async def test_an_end_that_was_stored_unheard_is_ours(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal had it, only its acknowledgement was lost."""
    monkeypatch.setattr(episode_attempt, "PUBLISH_RETRY_SECONDS", 0.1)
    world, gateway = await start()
    await world.publish(member())
    episode = await gateway.opened()
    outage = Outage(gateway, EpisodeEnded, monkeypatch, is_stored=True)

    report = asyncio.create_task(gateway.end(episode, {"reward": 0.5}))
    await world.ended(EPISODE)
    outage.is_on = False

    assert ((await report).status_code, (await report).json()["reward"]) == (200, 0.5)


async def test_a_gateway_that_stops_does_not_wait_for_the_journal(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reports is told that it is not stored."""
    world, gateway = await start()
    await world.publish(member())
    episode = await gateway.opened()
    Outage(gateway, EpisodeEnded, monkeypatch)
    report = asyncio.create_task(gateway.end(episode, {"reward": 0.5}))
    await asyncio.sleep(0.3)

    gateway.context.stopping.set()
    async with asyncio.timeout(5):
        assert (await report).status_code == 503
        await gateway.task


async def test_the_end_of_an_agent_of_ours_outlives_an_outage(
    start: Start, python_agents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reward is not worked out a second time, and no attempt is lost."""
    monkeypatch.setattr(episode_attempt, "PUBLISH_RETRY_SECONDS", 0.1)
    world, gateway = await start(python_agents("prints"))
    outage = Outage(gateway, EpisodeEnded, monkeypatch)
    await world.publish(member())
    async with asyncio.timeout(20):
        while outage.num_tries < 2:
            await asyncio.sleep(0.05)
    outage.is_on = False

    ended = await world.ended(EPISODE)
    assert (ended.status, ended.reward) == (EpisodeStatus.COMPLETED, 1.0)


async def test_who_does_not_wait_waits_for_what_is_being_started(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow journal costs no attempt."""
    world, gateway = await start()
    await world.publish(member())
    say = gateway.context.journal.publish

    async def slow(event: Any) -> Any:
        await asyncio.sleep(1.0 if isinstance(event, EpisodeStarted) else 0)
        return await say(event)

    monkeypatch.setattr(gateway.context.journal, "publish", slow)

    assert (await gateway.open(wait_seconds=0)).status_code == 201


async def test_a_client_that_leaves_before_the_start_is_said_costs_no_attempt(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one gets the same."""
    world, gateway = await start()
    first, is_slow = gateway.context.journal.first, asyncio.Event()

    async def slow(kind: Any, *known: Any, **more: Any) -> Any:
        run = gateway.runner._runner_run
        if kind is EpisodeEnded and run is not None and run.num_running:
            is_slow.set()
            await asyncio.sleep(2.0)  # longer than until it is seen that nobody is there
        return await first(kind, *known, **more)

    monkeypatch.setattr(gateway.context.journal, "first", slow)
    await world.publish(member())
    leaver = asyncio.create_task(gateway.http.post("/episodes", json={"wait_seconds": 60}))
    async with asyncio.timeout(10):
        await is_slow.wait()
    leaver.cancel()
    monkeypatch.setattr(gateway.context.journal, "first", first)
    await asyncio.sleep(2.5)

    assert await world.manager.context.journal.first(EpisodeStarted, RUN, episode=EPISODE) is None
    assert (await gateway.opened())["episode"] == EPISODE


async def test_a_prompt_is_published_when_there_is_a_place_for_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, its repetitions without a name would each be a task of their own."""
    world, gateway = await start(fleet={"agents": 1})
    await world.publish(member())
    episode = await gateway.opened()
    said = []
    say = gateway.context.journal.publish

    async def noted(event: Any) -> Any:
        said.append(type(event))
        return await say(event)

    monkeypatch.setattr(gateway.context.journal, "publish", noted)
    refused = [await gateway.open(prompt="Tidy up.", wait_seconds=0.1) for _ in range(3)]
    assert [(each.status_code, "task" in each.json()) for each in refused] == [(503, False)] * 3
    assert "fleet.agents = 1" in refused[0].json()["error"]["message"] and TaskSubmitted not in said

    waiting = asyncio.create_task(gateway.open(prompt="Tidy up.", wait_seconds=2))
    await asyncio.sleep(0.2)
    await gateway.end(episode, {"reward": 1.0})
    assert (await waiting).json()["task"] and said.count(TaskSubmitted) == 1


@pytest.mark.parametrize("url", ["https://agents.example", "http://10.0.0.7:8000", "nonsense", "http://[::1"])
async def test_a_gateway_that_is_reached_from_elsewhere_needs_a_token(start: Start, url: str) -> None:
    """It does not start without, and says what to set; the URL itself may hold a password."""
    with pytest.raises(ConfigError, match="set SEAMLESSFLOW_GATEWAY_TOKEN") as refused:
        await start(gateway_url=url)
    assert url not in str(refused.value)
    Access("token", "127.0.0.1", url)
    for local in (None, "http://127.0.0.1:80", "http://localhost", "http://[::1]:8000/v1"):
        Access(None, "127.0.0.1", local)


class Outage:
    """While it is on, a gateway's events of one kind fail; is_stored: though they got there."""

    def __init__(self, gateway: Gateway, kind: type, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool = False) -> None:
        self.is_on, self.num_tries = True, 0
        say = gateway.context.journal.publish

        async def failing(event: Any) -> Any:
            if not self.is_on or not isinstance(event, kind):
                return await say(event)
            self.num_tries += 1
            if is_stored:
                await say(event)
            raise Unavailable("nobody answered")

        monkeypatch.setattr(gateway.context.journal, "publish", failing)


async def said_to(gateway: Gateway, request: str) -> bytes:
    """The answer to raw bytes."""
    host, _, port = gateway.base_url.removeprefix("http://").removesuffix("/v1").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request.encode())
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer


async def test_an_episode_that_an_earlier_runner_started_is_lost_and_the_next_is_given(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asked never notices."""
    monkeypatch.setattr(episode_queue, "PATROL_SECONDS", 0.3)
    monkeypatch.setattr(local_episode, "DOUBT_SECONDS", 0.2)
    world, gateway = await start()
    lost = member()
    await world.publish(lost)
    await world.publish(EpisodeStarted(run=RUN, episode=lost.episode, runner="earlier"))
    over = member(index=1)
    await world.publish(
        EpisodeEnded(run=RUN, episode=over.episode, shard=0, origin=over.origin, status=EpisodeStatus.RUN_ENDED)
    )
    await world.publish(over)
    await world.publish(member(index=2))

    assert (await gateway.opened())["index"] == 2
    assert (await world.ended(lost.episode)).status is EpisodeStatus.RUNNER_LOST
    assert await world.manager.context.journal.first(EpisodeStarted, RUN, episode=over.episode) is None


async def test_a_stopped_gateway_hands_back_and_says_what_is_lost(start: Start) -> None:
    """Episodes at hand go to the next gateway as they are; open ones are lost; who waits is told."""
    world, gateway = await start()
    for task in ("t1", "t2", "t3"):
        await world.publish(member(task))
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
    monkeypatch.setattr(episode_queue, "SHELF_SECONDS", 0.3)
    world, first = await start(gateway_only=True)
    _, second = await start(world=world, gateway_only=True)
    await world.publish(member())
    await first.open(task="none-of-these", wait_seconds=0.5)
    assert num_delivered(world) == 1

    assert (await second.opened())["episode"] == "g-t1-0-0"


async def test_after_a_killed_gateway_an_agent_opens_a_new_episode(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old key is unknown; its episode is said to be lost by the one that takes over."""
    monkeypatch.setattr(local_episode, "DOUBT_SECONDS", 0.2)
    world, gateway = await start()
    await world.publish(member())
    episode = await gateway.opened()
    await gateway.kill()
    _, second = await start(world=world)

    asked = asyncio.create_task(second.open(wait_seconds=20))
    ended = await world.ended(episode["episode"])
    await world.publish(member(attempt=1))

    assert ended.status is EpisodeStatus.RUNNER_LOST
    assert (await asked).json()["attempt"] == 1
    assert (await second.ask(f"{second.base_url}", episode["api_key"])).status_code == 401
    assert (await second.end(episode, {"reward": 1.0})).status_code == 401
