"""The whole data plane around one client's episode, all real but the model, over a real nats-server.

    agent-runner ─ starts ▶ client program ─ HTTP ▶ wiretap ▶ gateway ─ CallRequested ▶ trajectory-manager
                                                                 rollout-worker (TellingEngine) ◀ GenerationRequested ─┘

Every episode is a run of its own, so that many go on side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seamlessflow.bus.jetstream import JetStreamBus, connect
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import EpisodeEnded, Int32s, Role, SamplesReady, SegmentSampled, Service
from seamlessflow.runtime import Context, make_context
from seamlessflow.store.large_payloads import Store
from seamlessflow_agent_runner.config import RunnerSettings
from seamlessflow_agent_runner.service import AgentRunner
from seamlessflow_rollout_worker.config import WorkerSettings
from seamlessflow_rollout_worker.service import RolloutWorker
from seamlessflow_trajectory_manager.service import TrajectoryManager
from tests.clients.conductor import ENV, SHARD, TAG, Conductor, node_of
from tests.clients.roster import Client
from tests.clients.scripted_model import Sampled, TellingEngine
from tests.clients.wiretap import Wiretap

TOKENS_BEFORE_PAUSE = 12
NUM_PAUSES = 2
"""So many of an episode's generations are interrupted."""
EPISODE_SECONDS = 180.0
"""Beyond its pauses; the machine may be shared by many."""
END_SECONDS = 30.0
"""How long a service may take to end in order."""


@dataclass(frozen=True)
class Outcome:
    """What one episode left behind."""

    client: Client
    ended: EpisodeEnded
    ready: SamplesReady
    journal: dict[str, Sampled]
    """By generation, oldest first: the tokens that count. The journal keeps no prompts."""
    engine: dict[str, Sampled]
    """By generation, oldest first: what it was fed and drew; behind a stop text that may be more than counts."""
    requests: list[str]
    statuses: list[int]

    @property
    def num_posts(self) -> int:
        return sum(request.startswith("POST") for request in self.requests)


class DataPlane:
    """One run with one episode."""

    def __init__(self, client: Client, run: str, server_url: str, folder: Path) -> None:
        self.client, self.run, self.engine, self.tap = client, run, TellingEngine(client.lines), Wiretap()
        self._server_url, self._folder = server_url, folder
        self._store = Store(f"file://{folder}/store")

    async def episode(self, pause_seconds: float) -> Outcome:
        """Run it. The weights change in the middle of its first two generations, and the engine stands still so long."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(asyncio.timeout(EPISODE_SECONDS + NUM_PAUSES * pause_seconds))
            conductor = Conductor(self.run, await self._connected(stack, "conductor"), self._store)
            await self.tap.open()
            stack.push_async_callback(self.tap.close)
            await conductor.start_run(
                {
                    "command": self.client.command(self.tap.url),
                    "reward": "tests.clients.task:says_the_answer",
                    "environment": self.client.environment_of(self.tap.url),
                    "deadline_seconds": EPISODE_SECONDS,
                }
            )
            await self._start_services(stack, conductor)
            await conductor.open_episode()
            await stack.enter_async_context(_meanwhile(self._pause_in_each(conductor, pause_seconds)))
            ended, ready = await conductor.said(EpisodeEnded), await conductor.said(SamplesReady)
            return Outcome(
                self.client, ended, ready, generations_of(await conductor.events(SegmentSampled)), self.engine.sampled,
                self.tap.requests, self.tap.statuses,
            )  # fmt: skip

    async def until_asked(self) -> None:
        """The client has started up and asks its first question."""
        await _until(lambda: bool(self.tap.requests))

    async def _start_services(self, stack: AsyncExitStack, conductor: Conductor) -> None:
        manager = await self._context(stack, Service.TRAJECTORY_MANAGER, Settings)
        await stack.enter_async_context(_running(TrajectoryManager(manager).run(), manager))
        await conductor.lease(Service.TRAJECTORY_MANAGER, Role.SERVE, SHARD)

        worker = await self._context(stack, Service.ROLLOUT_WORKER, WorkerSettings)
        service = RolloutWorker(worker, worker.settings, build=lambda config, settings, folder: self.engine)
        await stack.enter_async_context(_running(service.run(), worker))
        await conductor.lease(Service.ROLLOUT_WORKER, Role.ROLLOUT, TAG)

        runner = await self._context(stack, Service.AGENT_RUNNER, RunnerSettings)
        await stack.enter_async_context(_running(AgentRunner(runner, runner.settings).run(), runner))
        await _until(lambda: "gateway" in runner.presence.status.facts)
        self.tap.lead_to(str(runner.presence.status.facts["gateway"]))
        await conductor.lease(Service.AGENT_RUNNER, Role.SERVE, ENV)

    async def _context(self, stack: AsyncExitStack, service: Service, settings: Callable[..., Any]) -> Context:
        node = node_of(self.run, service)
        given = settings(node=node, instance=node, store_url=self._store.url, work_dir=self._folder / "work")
        return make_context(service, given, await self._connected(stack, service.value), capabilities=())

    async def _connected(self, stack: AsyncExitStack, name: str) -> JetStreamBus:
        bus = await connect(self._server_url, name=f"{self.run}/{name}", on_closed=lambda: None)
        stack.push_async_callback(bus.close)
        return bus

    async def _pause_in_each(self, conductor: Conductor, seconds: float) -> None:
        for number in range(NUM_PAUSES):
            await _until(lambda number=number: self._is_amid(number))
            await (conductor.lend_device(seconds) if seconds else conductor.update_in_place())

    def _is_amid(self, number: int) -> bool:
        sampled = list(self.engine.sampled.values())
        return len(sampled) > number and len(sampled[number].token_ids) >= TOKENS_BEFORE_PAUSE


def generations_of(segments: list[SegmentSampled]) -> dict[str, Sampled]:
    """Segments in the journal's order, joined."""
    joined: dict[str, Sampled] = {}
    for segment in segments:
        sampled = joined.setdefault(segment.generation, Sampled(Int32s(), [], []))
        assert segment.start == len(sampled.token_ids)
        sampled.token_ids += segment.token_ids
        sampled.versions += [segment.weights_version] * len(segment.token_ids)
    return joined


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None], context: Context) -> AsyncIterator[None]:
    """A service from here to the end of the block; it ends as SIGTERM would end it. Raises what it failed with."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        context.stopping.set()
        async with asyncio.timeout(END_SECONDS):
            await task


@asynccontextmanager
async def _meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Given up at the end of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)
