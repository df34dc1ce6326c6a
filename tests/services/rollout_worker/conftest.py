"""The world of rollout-worker tests; see rollout_world.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from seamlessflow.runtime import event_handlers as runtime_inbox
from seamlessflow_rollout_worker.engines.base import EngineError
from seamlessflow_rollout_worker.weights import update_deadlines
from seamlessflow_rollout_worker.weights import updater as weights_module
from tests.services.rollout_worker.rollout_world import World


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A world without a run yet; pings and polls are quick."""
    monkeypatch.setattr(runtime_inbox, "PROGRESS_SECONDS", 0.05)
    monkeypatch.setattr(weights_module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(update_deadlines, "FIRST_REST_SECONDS", 0.05)
    made = World(tmp_path)
    yield made
    for worker in made.workers:
        if not worker.task.done():
            worker.context.stopping.set()
            with suppress(EngineError):
                await worker.task
