"""A batch is made beside the event loop: presence, pings and leases go on however many tokens it has."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from seamlessflow.contracts import Role, StepTaken
from seamlessflow_trainer.data.batch import make_batch
from seamlessflow_trainer.steps import train_step
from tests.services.trainer.trainer_accounts import feed
from tests.services.trainer.trainer_world import World


@pytest.mark.parametrize("begin_share", [1.0, 0.5], ids=["whole", "in_parts"])
async def test_no_batch_is_made_in_the_event_loop(
    begin_share: float, make_world: Callable[..., Awaitable[World]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the first part of a step nor those that come while it learns."""
    threads: list[bool] = []

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return make_batch(*args)

    monkeypatch.setattr(train_step, "make_batch", noted)
    world = await make_world(steps=1, begin_share=begin_share)
    await world.lease(Role.TRAIN, hand_back=True)
    async with world.trainer():
        await feed(world, ["g0", "g1"])
        await world.hears(StepTaken)

    assert threads and not any(threads)
