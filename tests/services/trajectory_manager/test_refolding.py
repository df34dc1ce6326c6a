"""An episode's journal is read again beside what is known of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from seamlessflow.bus.base import Record
from seamlessflow.contracts import GenerationRequested
from seamlessflow.errors import Unavailable
from seamlessflow_trajectory_manager.run_reader import refold_episode
from seamlessflow_trajectory_manager.trajectory.manager import Manager
from tests.domain.trajectory_builders import EPISODE, manager, user
from tests.services.trajectory_manager.trajectory_world import World


class Watched:
    """A bus on which a manager is looked at while its journal is read, which may break off."""

    def __init__(self, world: World, under_test: Manager, *, breaks: bool) -> None:
        self._bus, self._manager, self._breaks = world.bus, under_test, breaks
        self.replies: list[str] = []

    async def read(self, *given: Any, **options: Any) -> AsyncIterator[Record]:
        async for record in self._bus.read(*given, **options):
            self.replies.append(self._manager.reply_of(EPISODE, "c0"))
            yield record
            if self._breaks:
                raise Unavailable("the server is away")


async def known(world: World) -> tuple[Manager, Any, GenerationRequested]:
    """A manager that knows of a call of which a segment has come."""
    under_test = manager()
    asked = await world.ask([user("q")])
    (request,) = under_test.apply(asked)
    assert isinstance(request, GenerationRequested)
    for event in world.engine.generates(request, "seven<|im_end|>", cuts=[2]):
        await world.journal.publish(event)
    return under_test, asked, request


async def test_what_is_known_stays_when_the_journal_cannot_be_read(world: World):
    """Its answers are hinted all the same, and the next try begins anew."""
    under_test, asked, request = await known(world)
    before = under_test.call(EPISODE, asked.call)
    bus: Any = Watched(world, under_test, breaks=True)
    with pytest.raises(Unavailable):
        await refold_episode(bus, world.journal, asked, under_test)
    assert under_test.call(EPISODE, asked.call) is before and bus.replies == [asked.reply]
    assert under_test.apply(asked) == [request]


async def test_what_is_known_is_replaced_when_the_journal_is_read(world: World):
    """By all that is in it; until then what was known stands."""
    under_test, asked, _ = await known(world)
    bus: Any = Watched(world, under_test, breaks=False)
    await refold_episode(bus, world.journal, asked, under_test)
    assert set(bus.replies) == {asked.reply}
    call = under_test.call(EPISODE, asked.call)
    assert call is not None and call.is_answered
