"""What becomes of trees when their episodes end: samples made beside the event loop, a packed tree in the store, metrics."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from seamlessflow.contracts import SamplesReady
from seamlessflow.errors import Unavailable
from seamlessflow.telemetry import _counts
from seamlessflow_trajectory_manager.trajectory import episode_end
from seamlessflow_trajectory_manager.trajectory.samples import samples_of
from seamlessflow_trajectory_manager.trajectory.tree import Tree
from seamlessflow_trajectory_manager.tree_store import MAX_PENDING, TreeShelf, tree_path, unpack_tree
from tests.domain.trajectory_builders import CALC, EPISODE, RUN, user
from tests.services.trajectory_manager.trajectory_world import World


async def forked_episode(world: World) -> SamplesReady:
    """The last call offers no tools any more."""
    first = await world.turn([user("q")], "seven", tools=[CALC])
    await world.turn([user("q"), first.message, user("r")], "eight")
    await world.journal.publish(world.agent.ends(num_calls=2))
    return await world.found(SamplesReady)


async def kept(world: World) -> Tree:
    async with asyncio.timeout(5):
        while not world.store.exists(tree_path(RUN, EPISODE)):
            await asyncio.sleep(0.005)
    return unpack_tree(world.store.read(tree_path(RUN, EPISODE)))


async def test_a_finished_tree_is_in_the_store(world: World):
    """It gives the samples that were said."""
    await world.start_manager()
    ready = await forked_episode(world)
    assert samples_of(await kept(world)) == ready.samples


async def test_forks_are_facts_and_metrics(world: World):
    """With their cause, and what they cost."""
    names = [("forks", "tools_changed"), ("reprefilled_tokens", "tools_changed")]
    before = [_counts[name] for name in names]
    await world.start_manager()
    ready = await forked_episode(world)
    assert (ready.num_forks, ready.fork_causes, ready.num_roots) == (1, {"tools_changed": 1}, 2)
    assert ready.reprefilled_tokens > 0
    assert [_counts[name] - was for name, was in zip(names, before, strict=True)] == [1, ready.reprefilled_tokens]


@pytest.mark.parametrize("is_large", [True, False])
async def test_samples_of_a_large_tree_are_made_in_a_thread(world: World, monkeypatch: pytest.MonkeyPatch, is_large: bool):
    """The loop goes on meanwhile, and what comes behind the end is judged behind it."""
    monkeypatch.setattr("seamlessflow_trajectory_manager.service.LARGE_TOKENS", 0 if is_large else 10_000)
    threads, go_on = [], threading.Event()

    def slowly(*given: Any) -> Any:
        threads.append(threading.current_thread())
        if is_large:
            assert go_on.wait(10)
        return samples_of(*given)

    monkeypatch.setattr(episode_end, "samples_of", slowly)
    await world.start_manager()
    await world.turn([user("q")], "seven")
    await world.journal.publish(world.agent.ends(num_calls=1))
    late = await world.ask([user("r")])
    while not threads:
        await asyncio.sleep(0.005)
    if is_large:
        await asyncio.sleep(0.05)
        assert await world.events(SamplesReady) == []
        go_on.set()
    error = (await world.answer(late.call)).error
    assert error is not None and error.code == "episode_ended"
    assert len((await world.found(SamplesReady)).samples) == 1
    assert (threads[0] is threading.main_thread()) != is_large


async def test_a_store_that_refuses_costs_nothing(world: World, monkeypatch: pytest.MonkeyPatch):
    """The journal has all; the episode is judged, and the next one goes on."""
    from seamlessflow.store.large_payloads import Store

    def refuses(self: Store, path: str, content: bytes) -> None:
        raise Unavailable(f"cannot write {path}")

    await world.start_manager()
    monkeypatch.setattr(Store, "write", refuses)
    assert len((await forked_episode(world)).samples) == 2
    monkeypatch.undo()
    assert not world.store.exists(tree_path(RUN, EPISODE))
    await world.queue_is_empty()


async def test_a_slow_store_does_not_fill_the_memory(world: World, monkeypatch: pytest.MonkeyPatch):
    """Beyond a number of trees the next ones are left out."""
    go_on, written = threading.Event(), []

    def slowly(path: str, content: bytes) -> None:
        assert go_on.wait(10)
        written.append(path)

    monkeypatch.setattr(world.store, "write", slowly)
    shelf = TreeShelf(world.store)
    for number in range(MAX_PENDING + 10):
        shelf.put(RUN, f"e{number}", Tree())
    go_on.set()
    await shelf.settled()
    assert len(written) == MAX_PENDING
