"""The same promises over a real nats-server: a manager that is killed, and a server that dies, in the middle of a call."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.contracts import GenerationRequested, SamplesReady
from seamlessflow_trajectory_manager import run_reader
from seamlessflow_trajectory_manager.replay import main, replay_run
from tests.domain.trajectory_builders import RUN, user
from tests.services.trajectory_manager.trajectory_world import World

pytestmark = pytest.mark.system


@pytest.fixture
async def real(own_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """The world on a real server."""
    monkeypatch.setattr(run_reader, "POLL_SECONDS", 0.02)
    made = World(tmp_path, await connect(own_server.url, name="test"))
    await made.start_run(ack_wait_seconds=1.0)
    made.publish_model()
    await made.lease()
    await made.start_worker()
    yield made
    await made.close()


@pytest.mark.parametrize("dies", ["manager", "server"])
async def test_a_death_in_the_middle_of_a_call_changes_nothing(real: World, own_server: EmbeddedServer, dies: str):
    """The next manager, or the same one when the server is back, goes on; the journal replays without a difference."""
    manager = await real.start_manager(await connect(own_server.url, name="manager"))
    first = await real.turn([user("q")], "seven")
    asked = await real.ask([user("q"), first.message, user("r")])
    request = await real.found(GenerationRequested, generation=asked.call)
    events = real.engine.generates(request, "eight<|im_end|>", cuts=[2])
    for event in events[:2]:
        await real.journal.publish(event)
    if dies == "server":
        own_server.kill()
        own_server.start()
    else:
        await manager.kill()
        manager = await real.start_manager(await connect(own_server.url, name="manager-2"))
    for event in events[2:]:
        await real.journal.publish(event)
    answer = await real.answer(asked.call)
    await real.journal.publish(real.agent.ends(num_calls=2))
    (sample,) = (await real.found(SamplesReady)).samples
    assert answer.message["content"] == "eight" and len(sample.spans) == 2
    await real.queue_is_empty()
    compared = await replay_run(real.bus, real.store, RUN)
    assert (compared.num_compared, compared.differences, compared.num_pending) == (5, [], 0)
    await manager.stop()


async def test_the_replay_command_tells_by_its_exit_status(
    real: World, own_server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
):
    """0: it would say the same. 1: a tampered answer is shown. 2: there is no such run."""
    manager = await real.start_manager(await connect(own_server.url, name="manager"))
    answer = await real.turn([user("q")], "seven")
    await real.queue_is_empty()
    await manager.stop()
    assert await main(own_server.url, real.store.url, RUN) == 0
    assert "compared 2  equal 2  different 0" in capsys.readouterr().out
    await real.journal.publish(answer.model_copy(update={"call": "nobody"}))
    assert await main(own_server.url, real.store.url, RUN) == 1
    assert "nobody: was said, would not be" in capsys.readouterr().out
    assert await main(own_server.url, real.store.url, "no-such-run") == 2
    assert "no-such-run" in capsys.readouterr().err
