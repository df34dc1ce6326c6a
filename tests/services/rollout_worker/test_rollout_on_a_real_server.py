"""The same promises over a real nats-server: its death and restart, and the death of a real worker process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from seamlessflow.bus.jetstream import connect
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.contracts import GenerationClaimed, GenerationFinish
from tests.services.rollout_worker.rollout_world import NODE, RUN, World

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[3]


@pytest.fixture
async def real(own_server: EmbeddedServer, world: World) -> AsyncIterator[World]:
    """The world on a real server, with a run, a model and weights."""
    world.bus = await connect(own_server.url, name="test")
    await world.open_run(ack_wait_seconds=2.0)
    await world.publish_model()
    await world.publish_weights(0)
    yield world
    await world.bus.close()


async def test_a_server_that_dies_in_the_middle_costs_no_token(real: World, own_server: EmbeddedServer):
    """Sampling goes on while it is away; what was sampled is said when it is back, in the same claim or a later one."""
    bus = await connect(own_server.url, name="worker")
    worker = real.worker(bus=bus)
    await real.lease()
    await real.ask(max_tokens=12)
    await real.until(lambda: worker.engine.requests)
    worker.engine.step(4)
    await real.until_tokens(4)

    own_server.kill()
    worker.engine.step(4)
    await asyncio.sleep(0.3)
    own_server.restart()
    await real.until(lambda: worker.engine.requests)
    while worker.engine.requests:
        worker.engine.step(4)
        await asyncio.sleep(0.05)
    await real.until_ended(seconds=20.0)

    assert await real.tokens() == [1003 + n for n in range(12)]
    await worker.terminate()
    await bus.close()


async def test_a_call_that_is_abandoned_in_the_middle_of_a_stream_keeps_its_tokens(
    real: World, own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
):
    """Read along token by token until its client goes; what is delivered after that is not sampled at all."""
    monkeypatch.setattr("seamlessflow_rollout_worker.worker_monitor.PROGRESS_SECONDS", 0.2)
    bus = await connect(own_server.url, name="worker")
    worker = real.worker(bus=bus)
    await real.lease()
    await real.ask("c1", max_tokens=50, stream=True)
    await real.until(lambda: worker.engine.requests)
    for count in (1, 2, 3):
        worker.engine.step()
        await real.until_tokens(count)

    await real.abandon("c1")
    await real.until_ended(seconds=10.0)
    await real.abandon("c2")
    await asyncio.sleep(0.3)  # what one look saw is good for a moment
    await real.ask("c2", max_tokens=50)
    await real.until_ended(2, seconds=10.0)

    ends = {end.generation: (end.finish, end.num_tokens) for end in await real.ended()}
    assert ends == {"c1": (GenerationFinish.CANCELLED, 3), "c2": (GenerationFinish.CANCELLED, 0)}
    assert len(worker.engine.budgets) == 1
    await worker.terminate()
    await bus.close()


async def start_process(world: World, server: EmbeddedServer) -> asyncio.subprocess.Process:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'shared'}",
        "SEAMLESSFLOW_NATS_URL": server.url,
        "SEAMLESSFLOW_STORE_URL": world.store.url,
        "SEAMLESSFLOW_NODE": NODE,
        "SEAMLESSFLOW_WORK_DIR": str(world.folder / "work"),
        "SEAMLESSFLOW_TORCH_THREADS": "1",
    }
    return await asyncio.create_subprocess_exec(sys.executable, "-m", "seamlessflow_rollout_worker", cwd=ROOT, env=environment)


async def test_a_worker_killed_at_any_line_is_replaced_without_loss(real: World, own_server: EmbeddedServer):
    """kill -9 in the middle of many generations, a new process, SIGTERM at the end: each generation is there once, whole."""
    await real.lease()
    for number in range(40):
        await real.ask(f"c{number}", episode=f"t-{number}-0", max_tokens=50)
    first = await start_process(real, own_server)
    await real.until_said(GenerationClaimed, seconds=30.0)
    first.send_signal(signal.SIGKILL)
    await first.wait()

    second = await start_process(real, own_server)
    await real.until_ended(40, seconds=40.0)
    second.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(second.wait(), 20.0) == 0

    ends = {end.generation: end.num_tokens for end in await real.ended()}
    assert len(await real.ended()) == 40
    assert ends == {generation: len(await real.tokens(generation)) for generation in ends}
    assert {claim.run for claim in await real.said(GenerationClaimed)} == {RUN}
