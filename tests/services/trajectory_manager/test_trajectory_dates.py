"""A template that shows the time: one and the same for a run, whoever takes it over and whenever."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from seamlessflow.contracts import GenerationRequested, RunStarted
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import ConfigError
from seamlessflow_trajectory_manager.replay import replay_run
from seamlessflow_trajectory_manager.run_reader import started_at
from tests.domain.trajectory_builders import CHATML, RUN, tokenizer, user
from tests.services.trajectory_manager import trajectory_world
from tests.services.trajectory_manager.trajectory_world import World

FORM = "%d %b %Y %H:%M:%S.%f"
DATED = "{{ '<|im_start|>system\n' + strftime_now('" + FORM + "') + '<|im_end|>\n' }}" + CHATML


async def test_who_takes_over_renders_as_the_first_one_did(world: World, monkeypatch: pytest.MonkeyPatch):
    """The time is the one at which the run began, and a replay finds no difference."""
    files = {**trajectory_world.model_files(), "chat_template.jinja": DATED.encode()}
    monkeypatch.setattr(trajectory_world, "model_files", lambda: files)
    world.publish_model()
    manager = await world.start_manager()
    await world.turn([user("q")], "seven", call="c0")
    await world.queue_is_empty()
    await manager.kill()
    await world.start_manager()
    await world.turn([user("q")], "eight", call="c1")
    first, second = [(await world.found(GenerationRequested, generation=call)).suffix for call in ("c0", "c1")]
    assert first == second
    record = await world.bus.first(journal_stream(RUN), subject_filter(RunStarted, run=RUN))
    assert record is not None
    assert datetime.fromtimestamp(record.time, UTC).strftime(FORM) in tokenizer().decode(list(first))
    await world.queue_is_empty()
    assert (await replay_run(world.bus, world.store, RUN)).differences == []


async def test_a_run_that_has_not_begun_has_no_time(world: World):
    """Nobody asks before it has begun."""
    await world.bus.delete_stream(journal_stream(RUN))
    await world.bus.ensure_stream(trajectory_world.run_streams(RUN)[0])
    with pytest.raises(ConfigError, match="not started"):
        await started_at(world.bus, RUN)
