"""Which weights version an episode keeps: decided once, at its first call, and said of all its calls."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from seamlessflow.config.run import WeightsSection
from seamlessflow.contracts import CallRequested, EpisodeOrigin, EpisodeStatus, Sampling, WeightsLoaded, WeightsPublished
from seamlessflow.errors import Unavailable
from seamlessflow_agent_runner.episodes.pinned_version import Pin, Pinning
from tests.services.agent_runner.conftest import config_of, echo

RUN = "r1"


@pytest.fixture(autouse=True)
def looks_often(monkeypatch):
    monkeypatch.setattr("seamlessflow_agent_runner.episodes.pinned_version.FRESH_SECONDS", 0.001)


def call(name: str, **more) -> CallRequested:
    origin = EpisodeOrigin(group="t1", task="t1", env="sums", index=0, attempt=0)
    known = {"run": RUN, "episode": "t1-0-0", "shard": 0, "bucket": 0, "origin": origin, "tag": "rollout"}
    return CallRequested(**known, call=name, messages=(), sampling=Sampling(), seed=1, **more)


@pytest.fixture
async def journal(make_world):
    return (await make_world(config_of())).context().journal


class Kept(list):
    """What was said of kept versions."""

    def of(self, journal, slots: int = 4) -> Pinning:
        return Pinning(journal, RUN, slots, self.append)


async def load(journal, version: int, worker: str = "w1") -> None:
    facts = {"fetch_seconds": 0.0, "pause_seconds": 0.0, "num_frozen": 0}
    await journal.publish(WeightsLoaded(run=RUN, weights_version=version, worker=worker, **facts))
    await asyncio.sleep(0.005)


async def test_all_calls_of_an_episode_keep_the_version_of_the_first_one(journal):
    """However far weights move on; the tag names the slot of the version."""
    pinning = Kept().of(journal)
    await load(journal, 6)
    pin = Pin(pinning)
    said = [await pin.on(call("c1"))]
    await load(journal, 7)
    said.append(await pin.on(call("c2")))

    assert [(each.weights_version, each.tag) for each in said] == [(6, "rollout+v2")] * 2
    assert (await Pin(pinning).on(call("c3"))).weights_version == 7


async def test_calls_made_side_by_side_agree(journal):
    """Also where weights move on between them."""
    pinning, pin = Kept().of(journal), None
    pin = Pin(pinning)
    calls = [asyncio.create_task(pin.on(call(f"c{number}"))) for number in range(5)]
    await load(journal, 1)
    await load(journal, 2)

    assert len({each.weights_version for each in await asyncio.gather(*calls)}) == 1


async def test_an_episode_that_comes_before_any_weights_waits_for_the_first(journal):
    """Nothing can be sampled before that anyway, and what it would keep is not known."""
    waiting = asyncio.create_task(Pin(Kept().of(journal)).on(call("c1")))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await load(journal, 0)

    assert (await waiting).weights_version == 0


async def test_where_the_word_of_the_first_load_was_lost_an_episode_keeps_what_was_published(journal, monkeypatch):
    """It is said once, and the next load comes only when episodes have ended; a load that is said after all counts again."""
    monkeypatch.setattr("seamlessflow_agent_runner.episodes.pinned_version.UNREPORTED_SECONDS", 0.03)
    pinning = Kept().of(journal)
    waiting = asyncio.create_task(pinning.newest())
    await asyncio.sleep(0.01)
    await journal.publish(WeightsPublished(run=RUN, weights_version=3, step=3, path="p", num_bytes=1, wall_seconds=0.0))
    assert not waiting.done()

    assert await asyncio.wait_for(waiting, 5) == 3
    await load(journal, 2)
    assert await pinning.newest() == 2


async def test_a_journal_that_is_away_is_waited_for(journal, monkeypatch):
    """A call is held, never refused."""
    monkeypatch.setattr("seamlessflow_agent_runner.episodes.pinned_version.RETRY_SECONDS", 0.001)
    await load(journal, 3)
    answers = [Unavailable("no server"), Unavailable("no server")]

    class Away:
        async def last(self, *known):
            if answers:
                raise answers.pop()
            return await journal.last(*known)

    assert await Kept().of(Away()).newest() == 3 and answers == []


async def test_who_loads_an_older_version_late_takes_no_episode_back(journal):
    """The journal's last word is its; what others loaded before is newer."""
    pinning = Kept().of(journal)
    await load(journal, 5, "w1")
    assert await pinning.newest() == 5
    await load(journal, 4, "w2")

    assert await pinning.newest() == 5


async def test_no_episode_keeps_a_version_older_than_it_may_use(journal):
    """As an evaluation of the last weights, which nobody may have loaded yet."""
    await load(journal, 5)

    assert (await Pin(Kept().of(journal)).on(call("c1", min_weights_version=6))).weights_version == 6


async def test_which_versions_are_kept_is_said_whenever_that_changes(journal):
    """By versions, not by episodes: the scheduler wants to know which are needed at all."""
    kept = Kept()
    pinning = kept.of(journal)
    await load(journal, 1)
    one, other, third = Pin(pinning), Pin(pinning), Pin(pinning)
    await one.on(call("c1"))
    await other.on(call("c2"))
    await load(journal, 2)
    await third.on(call("c3"))
    one.release()
    one.release()
    assert kept == [(1,), (1, 2)]
    other.release()
    third.release()

    assert kept[2:] == [(2,), ()]


async def test_an_episode_that_ends_before_its_version_is_known_keeps_none(journal):
    """Its call was cut off while it waited for the first weights."""
    kept = Kept()
    pin = Pin(kept.of(journal))
    waiting = asyncio.create_task(pin.on(call("c1")))
    await asyncio.sleep(0.01)
    pin.release()
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting

    assert kept == []


async def test_an_agents_calls_say_its_version_and_its_runner_says_that_it_is_needed(
    start_runner, make_world, python_agents, lease
):
    """Until the episode is over; what answers them sees the slot in their tag."""
    config = config_of(python_agents("asks_plainly"))
    world = await make_world(config.model_copy(update={"weights": WeightsSection(pinned="episode")}))
    needed: list[tuple[int, ...]] = []

    async def reply(messages, request):
        needed.append(runner.context.presence.status.versions)
        return await echo(messages, request)

    world.manager.reply = reply
    await lease(world)
    _, runner = await start_runner(world=world)
    await load(world.manager.context.journal, 6)
    ended = await world.run_one(prompt="hello")
    (asked,) = world.manager.calls

    assert (ended.status, asked.weights_version, asked.tag) == (EpisodeStatus.COMPLETED, 6, "rollout+v2")
    assert needed == [(6,)] and runner.context.presence.status.versions == ()


async def test_a_run_that_keeps_no_versions_says_none(start_runner, python_agents):
    """Nor does it ask the journal for any."""
    world, runner = await start_runner(python_agents("asks_plainly"))
    await world.run_one(prompt="hello")
    (asked,) = world.manager.calls

    assert (asked.weights_version, asked.tag) == (None, "rollout")
    assert (runner.context.presence.status.versions, runner.context.presence.status.run) == ((), None)
