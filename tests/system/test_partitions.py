"""Several trajectory-managers share a run's shards: one comes, goes or dies, and its shards move; calls only wait.

What was said meanwhile is at last compared with what a single, fresh manager says to the same journal.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.contracts import Service

from .manager_load import ManagerLoad
from .manager_services import Processes, Tasks

NEW_CALL_SECONDS = 5.0
"""A call that begins after a manager was killed waits no longer."""
CALL_IN_FLIGHT_SECONDS = 12.0
"""Nor does one that was being answered then."""
MANAGER = Service.TRAJECTORY_MANAGER


async def share(load: ManagerLoad, *nodes: str) -> None:
    """Wait until these managers serve all shards, evenly."""
    each = load.num_shards // len(nodes)

    async def shared() -> bool:
        leased = [await load.shards_of(node) for node in nodes]
        says = [f"shards {', '.join(tags)}" in await load.served_by(node) for node, tags in zip(nodes, leased, strict=True)]
        return all(says) and [len(tags) for tags in leased] == [each] * len(nodes)

    await load.until(shared)


async def nothing_wrong_was_said(load: ManagerLoad) -> None:
    """Every call was answered, every episode judged, and a fresh manager would say the very same."""
    compared = await load.finish()
    assert (compared.differences, compared.num_pending) == ([], 0)
    assert compared.num_equal == len(load.calls) * 2 + load.num_episodes  # a generation and an answer each


@pytest.fixture
async def quick(tmp_path: Path) -> AsyncIterator[ManagerLoad]:
    """In this process, in memory, and few."""
    made = ManagerLoad(Tasks(tmp_path), tmp_path, num_shards=2, num_episodes=4)
    yield made
    await made.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_shards_move_when_a_manager_goes_and_come_back_with_it(quick: ManagerLoad, how: signal.Signals):
    """The other answers its calls, also those that were in flight; when it returns, it gets its share."""
    await quick.start("m0", "m1")
    await share(quick, "m0", "m1")
    gone_at = time.monotonic()
    await quick.services.end("m0", how)
    await share(quick, "m1")
    await quick.until(lambda: all(call.answered for call in quick.calls if call.began < gone_at))
    await quick.services.start("m0", MANAGER)
    await share(quick, "m0", "m1")
    await nothing_wrong_was_said(quick)


@pytest.fixture
async def load(own_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[ManagerLoad]:
    """Real processes, a real server, 16 episodes."""
    made = ManagerLoad(Processes(own_server, tmp_path), tmp_path)
    yield made
    await made.close()


@pytest.mark.system
@pytest.mark.slow
async def test_calls_wait_seconds_when_a_manager_is_killed(load: ManagerLoad):
    """kill -9: the shards move, and both kinds of calls keep the promise."""
    await load.start("m0", "m1")
    await share(load, "m0", "m1")
    await asyncio.sleep(2.0)
    killed_at = time.monotonic()
    await load.services.end("m0", signal.SIGKILL)
    await share(load, "m1")
    await asyncio.sleep(CALL_IN_FLIGHT_SECONDS - (time.monotonic() - killed_at) + 1.0)

    assert load.longest_new(killed_at) <= NEW_CALL_SECONDS
    assert max(load.in_flight(killed_at), default=0.0) <= CALL_IN_FLIGHT_SECONDS
    await nothing_wrong_was_said(load)


@pytest.mark.system
@pytest.mark.slow
async def test_a_manager_that_stood_still_and_wakes_says_nothing_wrong(load: ManagerLoad):
    """Its shards are another's meanwhile; it lets go of what it held, and gets its share again."""
    await load.start("m0", "m1")
    await share(load, "m0", "m1")
    stopped_at = time.monotonic()
    await load.services.end("m0", signal.SIGSTOP)
    await share(load, "m1")
    await asyncio.sleep(2.0)
    await load.services.end("m0", signal.SIGCONT)
    await share(load, "m0", "m1")

    assert max(load.in_flight(stopped_at), default=0.0) <= CALL_IN_FLIGHT_SECONDS
    await nothing_wrong_was_said(load)


@pytest.mark.system
@pytest.mark.slow
async def test_managers_come_and_go_in_order_while_calls_are_made(load: ManagerLoad):
    """A second one joins a run of one, then the first leaves; every call is answered within the promise."""
    await load.start("m0")
    await share(load, "m0")
    began_at = time.monotonic()
    await load.services.start("m1", MANAGER)
    await share(load, "m0", "m1")
    await load.services.end("m0", signal.SIGTERM)
    await share(load, "m1")

    assert load.longest_new(began_at) <= NEW_CALL_SECONDS
    await nothing_wrong_was_said(load)
