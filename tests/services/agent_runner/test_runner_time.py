"""An agent's deadline counts its own time: not what it waits for, but within an overall limit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamlessflow.contracts import EpisodeStatus
from seamlessflow_agent_runner.episodes import deadline as own_time
from seamlessflow_agent_runner.episodes.deadline import OwnTime, overall_seconds

CHANGES = st.lists(st.tuples(st.floats(0, 1000), st.sampled_from(["asked", "over"])), max_size=30)


@given(CHANGES)
def test_time_is_counted_exactly_while_no_call_waits(changes: list[tuple[float, str]]) -> None:
    """Whatever calls overlap."""
    now, waiting, expected = 0.0, 0, 0.0
    clock = OwnTime(lambda: now)
    for seconds, change in changes:
        now += seconds
        expected += seconds if waiting == 0 else 0.0
        assert clock.seconds == pytest.approx(expected)
        if change == "asked":
            waiting += 1
            clock.call_asked()
        elif waiting:
            waiting -= 1
            clock.call_over()
        assert clock.is_running == (waiting == 0)


def test_all_time_together_is_limited() -> None:
    """Ten deadlines, and half an hour at least."""
    assert [overall_seconds(deadline) for deadline in (1.0, 180.0, 1000.0)] == [1800.0, 1800.0, 10_000.0]


async def test_waiting_for_an_answer_is_not_the_agents_time(start_runner: Any, python_agents: Any) -> None:
    """The device was lent to training for longer than the deadline: the agent never learns of it."""
    world, _ = await start_runner(python_agents("asks_plainly", deadline_seconds=1.5))

    async def late(messages: Any, request: Any) -> dict[str, Any]:
        await asyncio.sleep(3.0)
        return {"role": "assistant", "content": "late"}

    world.manager.reply = late

    ended = await world.run_one()

    assert ended.status is EpisodeStatus.COMPLETED, ended.reason
    assert ended.wall_seconds > 3.0


async def test_after_its_answers_an_agents_time_runs_on(start_runner: Any, python_agents: Any) -> None:
    """What it had used before it asked counts too."""
    world, _ = await start_runner(python_agents("asks_then_hangs", deadline_seconds=1.5))

    ended = await world.run_one()

    assert ended.status is EpisodeStatus.DEADLINE and "of its own" in ended.reason
    assert ended.num_calls == 1 and ended.wall_seconds < 6.0


async def test_an_answer_that_never_comes_does_not_keep_an_agent_for_ever(
    start_runner: Any, python_agents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The overall limit ends it, and the reason says which limit it was."""
    monkeypatch.setattr(own_time, "MIN_OVERALL_SECONDS", 2.0)
    monkeypatch.setattr(own_time, "MAX_OVERALL_FACTOR", 1.0)
    world, _ = await start_runner(python_agents("asks_plainly", deadline_seconds=1.5))

    async def never(messages: Any, request: Any) -> dict[str, Any]:
        await asyncio.sleep(20)
        return {"role": "assistant", "content": "never"}

    world.manager.reply = never

    ended = await world.run_one()

    assert ended.status is EpisodeStatus.DEADLINE and "waiting for answers included" in ended.reason
    assert 2.0 <= ended.wall_seconds < 8.0
