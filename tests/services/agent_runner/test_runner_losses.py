"""Episodes that end from outside: another runner, the scheduler, a lease, a signal, a dead forkserver."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from seamlessflow.contracts import EpisodeEnded, EpisodeStarted, EpisodeStatus
from tests.services.agent_runner.runner_processes import children_of, pids_of, processes_gone


async def test_an_episode_that_another_runner_started_is_lost(start_runner: Any, python_agents: Any, make_opened: Any) -> None:
    """Its agent died with that runner; a new attempt is the scheduler's to open."""
    world, _ = await start_runner(python_agents("prints"))
    event = make_opened()
    await world.publish(EpisodeStarted(run=event.run, episode=event.episode, runner="earlier"))

    ended = await world.run_one()

    assert (ended.status, ended.reward) == (EpisodeStatus.RUNNER_LOST, None)
    assert "earlier agent-runner died" in ended.reason


async def test_an_episode_that_has_ended_is_not_run(start_runner: Any, python_agents: Any, make_opened: Any) -> None:
    """Opened twice, or ended by the scheduler before anybody took it."""
    world, _ = await start_runner(python_agents("prints"))
    event = make_opened("t9-0-0")
    await world.publish(EpisodeEnded(run="r1", episode="t9-0-0", shard=0, origin=event.origin, status=EpisodeStatus.RUN_ENDED))
    await world.publish(event)
    await world.run_one()

    assert await world.manager.context.journal.first(EpisodeStarted, "r1", episode="t9-0-0") is None


async def test_stopping_the_runner_ends_agents_quickly_and_says_so(
    start_runner: Any, python_agents: Any, make_opened: Any
) -> None:
    """SIGTERM: no agent stays, every started episode gets its end, no reward."""
    world, running = await start_runner(python_agents("hangs_with_daemon"))
    await world.publish(make_opened())
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
    await world.publish(make_opened())
    await until_started(world)

    await lease(world, run=None, epoch=2)
    assert (await world.ended()).status is EpisodeStatus.RUNNER_LOST

    await lease(world, epoch=3)
    await world.publish(make_opened("t1-1-0"))
    await until_started(world, "t1-1-0")


async def test_an_agent_whose_episode_the_scheduler_ended_is_killed(
    start_runner: Any, python_agents: Any, make_opened: Any
) -> None:
    """Within a few seconds, without a second EpisodeEnded."""
    world, _ = await start_runner(python_agents("hangs"))
    event = make_opened()
    await world.publish(event)
    await until_started(world)
    await world.publish(
        EpisodeEnded(run="r1", episode=event.episode, shard=0, origin=event.origin, status=EpisodeStatus.RUN_ENDED)
    )

    assert await processes_gone("sleep 1000", seconds=8)
    assert (await world.ended()).status is EpisodeStatus.RUN_ENDED


async def test_a_dead_forkserver_is_replaced_and_its_agents_are_lost(
    start_runner: Any, python_agents: Any, make_opened: Any
) -> None:
    """kill -9 of the process agents are forked from: they die too, and the next episode runs."""
    world, _ = await start_runner(python_agents("hangs"))
    await world.publish(make_opened())
    await until_started(world)
    await asyncio.sleep(0.3)
    for pid in pids_of("forkserver", below=children_of(os.getpid())):
        os.kill(pid, 9)

    ended = await world.ended()
    assert ended.status is EpisodeStatus.RUNNER_LOST and "forked from died" in ended.reason
    assert await processes_gone("sleep 1000")
    await world.publish(make_opened("t1-1-0"))
    await until_started(world, "t1-1-0")


async def until_started(world: Any, episode: str = "t1-0-0") -> None:
    async with asyncio.timeout(20):
        while await world.manager.context.journal.first(EpisodeStarted, "r1", episode=episode) is None:
            await asyncio.sleep(0.02)
