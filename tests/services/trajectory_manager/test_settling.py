"""The collector does not walk what has been there for long."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.runtime import GcControl
from seamlessflow_trajectory_manager.service import RunMember
from tests.domain.trajectory_builders import manager


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Other tests keep their collector."""
    yield
    gc.unfreeze()


def walked(objects: list[list[int]]) -> int:
    """How many of them the collector has in its generations still. Not a count of all frozen ones: others go meanwhile."""
    names = {id(each) for each in objects}
    return sum(id(each) in names for each in gc.get_objects())


def test_what_is_there_is_walked_no_more():
    """After the first event, and then after every so many."""
    settling = GcControl(every_events=3)
    settling.tick()
    later = [[number] for number in range(1000)]
    settling.tick()
    settling.tick()
    assert walked(later) == 1000
    settling.tick()
    assert walked(later) == 0


def test_who_handled_a_shard_goes_with_its_last_reference():
    """A cycle of its own would have kept it, and with it what it refers to."""
    context: Any = SimpleNamespace(bus=MemoryBus(MemoryServer()), store=None)

    async def sure() -> None: ...

    member = RunMember(context, manager(), sure)
    found = weakref.ref(member)
    gc.disable()
    try:
        del member
        assert found() is None
    finally:
        gc.enable()


def test_what_nobody_refers_to_goes_all_the_same():
    """Only cycles need the collector."""
    settling, kept = GcControl(every_events=1), [[number] for number in range(1000)]
    settling.tick()
    before = gc.get_freeze_count()
    kept.clear()
    assert gc.get_freeze_count() <= before - 1000
