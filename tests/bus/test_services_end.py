"""A service that is told to stop ends, whether the server is there to hear its goodbyes or not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.codec import unpack_record
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import NodeStatus, RunStarted, Service
from seamlessflow.contracts.streams import run_streams
from seamlessflow.runtime import Presence, open_context, presence

ROOT = Path(__file__).parents[2]


@pytest.fixture
def settings(own_server: Any, tmp_path: Path) -> Settings:
    return Settings(nats_url=own_server.url, store_url="memory://", node="n1", work_dir=tmp_path)


async def test_a_stop_does_not_wait_for_a_server_that_is_away(own_server: Any, settings: Settings) -> None:
    """Something is being said, presence is being renewed, a hint is listened for: all end within seconds."""
    began = time.monotonic()
    async with open_context(Service.AGENT_RUNNER, settings, capabilities=("serve",)) as context:
        for stream in run_streams("r1"):
            await context.bus.ensure_stream(stream)

        async def listen_and_say() -> None:
            unsubscribe = await context.bus.on_hint("hint.x", lambda payload: asyncio.sleep(0))
            try:
                await asyncio.Event().wait()
            finally:
                await context.journal.publish(RunStarted(run="r1", document={}))
                await unsubscribe()

        asyncio.get_running_loop().call_later(0.2, own_server.kill)
        asyncio.get_running_loop().call_later(0.7, context.stopping.set)
        await context.until_stopped(listen_and_say())
        await context.journal.publish(RunStarted(run="r1", document={}))  # raises BusClosed, which is no failure now
    assert time.monotonic() - began < 8.0


async def test_a_failure_of_another_kind_is_still_one(settings: Settings) -> None:
    """Only a bus that was closed because of the stop is forgiven."""
    with pytest.raises(RuntimeError, match="mine"):
        async with open_context(Service.AGENT_RUNNER, settings, capabilities=()) as context:
            context.stopping.set()
            raise RuntimeError("mine")


async def test_presence_says_goodbye_for_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that never answers, as one whose server is away."""
    bus = MemoryBus()
    bucket = await bus.kv("NODES")

    async def never(key: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(bucket, "delete", never)
    monkeypatch.setattr(presence, "GOODBYE_SECONDS", 0.1)
    status = NodeStatus(node="n", service="trainer", instance="i", capabilities=(), slots=0, pid=1)
    task = asyncio.create_task(Presence(bus, status).run())
    await asyncio.sleep(0.05)
    task.cancel()

    done, _ = await asyncio.wait({task}, timeout=2)

    assert done and task.cancelled()


async def test_a_busy_process_renews_its_presence_a_few_times_a_second_and_says_its_last_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent-runner changes its state with every episode; saying the same again says nothing."""
    bus = MemoryBus()
    bucket = await bus.kv("NODES")
    said: list[str] = []
    put = bucket.put

    async def noted(key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        said.append(unpack_record(NodeStatus, value).state)
        return await put(key, value, ttl_seconds=ttl_seconds)

    monkeypatch.setattr(bucket, "put", noted)
    monkeypatch.setattr(bus, "kv", AsyncMock(return_value=bucket))
    monkeypatch.setattr(presence, "PRESENCE_LEAST_SECONDS", 0.05)
    ours = Presence(bus, NodeStatus(node="n", service="trainer", instance="i", capabilities=(), pid=1))
    task = asyncio.create_task(ours.run())
    for number in range(20):
        await asyncio.sleep(0)
        ours.update(state=f"{number} agents")
    await asyncio.sleep(0.1)
    ours.update(state="19 agents")
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait({task})

    assert len(said) == 2
    assert said[-1] == "19 agents"


def test_sigterm_ends_an_agent_runner_whose_server_is_away(own_server: Any, tmp_path: Path) -> None:
    """The whole process, with exit code 0, and its log shows no password."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SEAMLESSFLOW_")},
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'shared'}",
        "SEAMLESSFLOW_NATS_URL": own_server.url,
        "SEAMLESSFLOW_STORE_URL": f"file://{tmp_path}/store",
        "SEAMLESSFLOW_WORK_DIR": f"{tmp_path}/work",
    }
    log = tmp_path / "log"
    with log.open("w") as output:
        runner = subprocess.Popen(
            [sys.executable, "-m", "seamlessflow_agent_runner"], env=environment, stdout=output, stderr=output, cwd=tmp_path
        )
    try:
        deadline = time.monotonic() + 30
        while "gateway.listening" not in log.read_text():
            assert runner.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        own_server.kill()
        time.sleep(0.3)
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(8) == 0, log.read_text()
    finally:
        runner.kill()
        runner.wait()
    assert "service.stopped" in log.read_text()
    password = own_server.url.partition("//")[2].partition("@")[0].partition(":")[2]
    assert password and password not in log.read_text()
    assert f"nats://127.0.0.1:{own_server.port}" in log.read_text()
