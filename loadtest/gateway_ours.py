"""Our side: nats-server, trajectory-manager and gateway as they are deployed, each a process, and a player of rollout-workers.

Ours (in the benchmark's process)      the run's streams, its document, its model folder, the manager's lease
python -m seamlessflow_trajectory_manager  the real one
python -m loadtest.gateway_ours door   the agent-runner's HTTP server, sessions and calls, without agents: sessions
                                       are opened as the runner opens them, so many for each line on standard input
loadtest.gateway_worker                answers every generation at once
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import tempfile
from pathlib import Path

from loadtest.gateway_child import Child, lines_told, reply
from loadtest.gateway_load import Endpoint
from loadtest.gateway_words import model_files
from seamlessflow.bus.jetstream import JetStreamBus, connect
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.codec import pack_record
from seamlessflow.config.run import RunConfig
from seamlessflow.config.sampling_sections import AgentSection, ModelSection, SamplingSection
from seamlessflow.config.training_sections import AlgorithmSection
from seamlessflow.contracts import EpisodeOpened, EpisodeOrigin, Lease, Role, RunStarted, Sampling, Service
from seamlessflow.contracts.routes import LEASES_BUCKET
from seamlessflow.contracts.streams import run_consumers, run_streams
from seamlessflow.runtime import Journal, open_context
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import model_path, publish_folder
from seamlessflow_agent_runner.config import RunnerSettings
from seamlessflow_agent_runner.gateway.call_requests import CallRequests
from seamlessflow_agent_runner.gateway.http_server import Gateway
from seamlessflow_agent_runner.gateway.sessions import Sessions

RUN, ENV, TAG, SHARD = "load", "load", "rollout", "0"
MANAGER_NODE = "load-trees"
CONTEXT_TOKENS = 65_536
MOST_TOKENS = 1000


class Ours:
    """Everything of ours, started."""

    def __init__(self, folder: Path, server: EmbeddedServer, bus: JetStreamBus, children: dict[str, Child]) -> None:
        self.folder, self.children = folder, children
        self._server, self._bus = server, bus
        self._base_url = ""

    @classmethod
    async def open(cls, folder: Path) -> Ours:
        server = EmbeddedServer(folder / "nats").start()
        store = Store(f"file://{folder / 'store'}")
        bus = await connect(server.url, name="load")
        await _start_run(bus, store)
        environment = {
            **os.environ,
            "SEAMLESSFLOW_NATS_URL": server.url,
            "SEAMLESSFLOW_STORE_URL": store.url,
            "SEAMLESSFLOW_WORK_DIR": str(folder / "work"),
            "SEAMLESSFLOW_NODE": MANAGER_NODE,
        }
        commands = {
            "manager": ["seamlessflow_trajectory_manager"],
            "door": ["loadtest.gateway_ours", "door"],
            "worker": ["loadtest.gateway_worker"],
        }
        children = {
            name: await Child.start([sys.executable, "-m", *command], environment, folder / f"{name}.log")
            for name, command in commands.items()
        }
        ours = cls(folder, server, bus, children)
        ours._base_url = (await children["door"].heard())["base_url"]
        await children["worker"].heard()
        return ours

    async def endpoints(self, count: int) -> list[Endpoint]:
        """So many new sessions."""
        keys = await self.children["door"].told(count)
        return [Endpoint(f"{self._base_url}/chat/completions", key) for key in keys]

    async def first_tokens(self) -> dict[str, float]:
        """By call: when (time.monotonic) the first token of each streamed generation left the engine, since last asked."""
        told: dict[str, float] = await self.children["worker"].told("first tokens")
        return told

    def check(self) -> None:
        """Raises RuntimeError with the last words of a process that has ended."""
        for name, child in self.children.items():
            if not child.is_running:
                raise RuntimeError(f"our {name} has ended; its last words: {child.last_words()}")

    async def close(self) -> None:
        await asyncio.gather(*(child.stop() for child in self.children.values()))
        await self._bus.close()
        self._server.stop()


async def _start_run(bus: JetStreamBus, store: Store) -> None:
    config = RunConfig(
        name=RUN,
        model=ModelSection(name="load", engine="scripted", max_context_tokens=CONTEXT_TOKENS),
        agents=(AgentSection(env=ENV, command=("true",)),),
        sampling=SamplingSection(max_tokens=MOST_TOKENS),
        algorithm=AlgorithmSection(steps=1),
    )
    for stream in run_streams(RUN):
        await bus.ensure_stream(stream)
    for consumer in run_consumers(RUN, envs=[ENV], shards=1, tags=[TAG], buckets=1):
        await bus.ensure_consumer(consumer)
    await Journal(bus, store).publish(RunStarted(run=RUN, document=config.model_dump(mode="json")))
    await asyncio.to_thread(publish_folder, store, model_path(RUN), model_files(), {})
    lease = Lease(run=RUN, role=Role.SERVE, tags=(SHARD,), epoch=1)
    await (await bus.kv(LEASES_BUCKET)).put(MANAGER_NODE, pack_record(lease))


def opened_episode(number: int) -> EpisodeOpened:
    """An episode as the scheduler opens it."""
    origin = EpisodeOrigin(group=f"g{number}", task=f"t{number}", env=ENV, index=0, attempt=0)
    return EpisodeOpened(
        run=RUN,
        episode=f"e{number}-{secrets.token_hex(4)}-0",
        origin=origin,
        shard=int(SHARD),
        bucket=0,
        env=ENV,
        prompt="",
        sampling=Sampling(max_tokens=MOST_TOKENS),
        tag=TAG,
        seed=number,
    )


async def door() -> None:
    """The agent-runner's side, until stopped."""
    settings = RunnerSettings()
    async with open_context(Service.AGENT_RUNNER, settings, capabilities=("serve",)) as context:
        sessions, desk = Sessions(), CallRequests(context.bus, context.journal)
        gateway = Gateway(sessions, desk)
        await gateway.open(settings.gateway_host, settings.gateway_port)
        await desk.open()
        try:
            reply({"base_url": gateway.base_url})
            await context.until_stopped(_open_sessions(sessions))
        finally:
            await gateway.close()
            await desk.close()


async def _open_sessions(sessions: Sessions) -> None:
    lines = await lines_told()
    number = 0
    while line := await lines.readline():
        count = int(line)
        opened = [sessions.open(opened_episode(number + each), "load") for each in range(count)]
        number += count
        reply([session.key for session in opened])


if __name__ == "__main__":
    import uvloop

    os.environ.setdefault("SEAMLESSFLOW_WORK_DIR", tempfile.gettempdir())
    os.environ["SEAMLESSFLOW_NODE"] = "load-agents"
    uvloop.run(door())
