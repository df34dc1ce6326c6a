"""A bench for every test that asks for one; see scheduler_bench.py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.services.scheduler.scheduler_bench import Bench

pytest.register_assert_rewrite("scheduler_history")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    await made.close()
