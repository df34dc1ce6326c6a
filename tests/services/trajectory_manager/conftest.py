"""The world of trajectory-manager tests; see trajectory_world.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from seamlessflow_trajectory_manager import run_reader
from tests.services.trajectory_manager.trajectory_world import World


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A started run with a published model, a worker, and a lease; no manager yet."""
    monkeypatch.setattr(run_reader, "POLL_SECONDS", 0.02)
    made = World(tmp_path)
    await made.start_run()
    made.publish_model()
    await made.lease()
    await made.start_worker()
    yield made
    await made.close()
