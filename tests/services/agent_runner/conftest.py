"""A runner over a memory bus, with a small real manager: it answers each call from what the episode's messages say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.codec import encode, pack_record
from seamlessflow.config.run import RunConfig, parse_run_config
from seamlessflow.contracts import (
    AnswerDelta,
    AnswerTokens,
    CallAnswered,
    CallError,
    CallRequested,
    EpisodeEnded,
    EpisodeOpened,
    EpisodeOrigin,
    Lease,
    Role,
    RunStarted,
    Sampling,
    Service,
    Usage,
)
from seamlessflow.contracts.routes import LEASES_BUCKET
from seamlessflow.contracts.streams import consumer_name, queue_stream, run_consumers, run_streams
from seamlessflow.runtime import Context, make_context
from seamlessflow_agent_runner.config import RunnerSettings
from seamlessflow_agent_runner.gateway.call_requests import CallRequests
from seamlessflow_agent_runner.gateway.http_server import Gateway
from seamlessflow_agent_runner.gateway.sessions import Session, Sessions
from seamlessflow_agent_runner.service import AgentRunner
from tests.services.agent_runner.elsewhere import Gateway as ElsewhereGateway
from tests.services.agent_runner.elsewhere import external, start_gateway

RUN = "r1"
NODE = "agents"
HERE = Path(__file__).parent
Reply = Callable[[list[dict[str, Any]], CallRequested], Awaitable[dict[str, Any] | CallError]]


async def echo(messages: list[dict[str, Any]], request: CallRequested) -> dict[str, Any]:
    """Says what the last message said."""
    return {"role": "assistant", "content": f"echo: {messages[-1]['content']}"}


@dataclass
class FakeManager:
    """Answers calls from their digests, as the real one does, but from a function instead of a model."""

    context: Context
    reply: Reply = echo
    with_hints: bool = True
    tokens: AnswerTokens | None = None
    calls: list[CallRequested] = field(default_factory=list)
    contents: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def open(self) -> None:
        self.subscription = await self.context.handlers.consume(
            queue_stream(Service.TRAJECTORY_MANAGER, RUN),
            consumer_name(Service.TRAJECTORY_MANAGER, "0"),
            {CallRequested: self.on_call_requested},
            credit=256,
        )

    async def on_call_requested(self, request: CallRequested) -> list[CallAnswered]:
        self.calls.append(request)
        self.contents |= request.unseen
        said = await self.reply([self.contents[key] for key in request.messages], request)
        known = {"run": RUN, "episode": request.episode, "call": request.call}
        if isinstance(said, CallError):
            answer = CallAnswered(**known, error=said)
        else:
            finish = "tool_calls" if said.get("tool_calls") else "stop"
            usage = Usage(prompt_tokens=len(request.messages), completion_tokens=7)
            if request.stream and self.with_hints:
                for delta in deltas_of(request, said):
                    await self.context.bus.hint(request.reply, encode(delta))
                    await asyncio.sleep(0.01)  # as tokens are sampled one after the other
            answer = CallAnswered(**known, message=said, finish_reason=finish, usage=usage, tokens=self.tokens)
        await self.context.journal.publish(answer)
        if self.with_hints:
            await self.context.bus.hint(request.reply, encode(answer))
        return []


def deltas_of(request: CallRequested, said: dict[str, Any]) -> list[AnswerDelta]:
    """All texts of a turn but their last characters, in two parts each that overlap."""
    known = {"run": RUN, "episode": request.episode, "call": request.call}
    reasoning, content = said.get("reasoning_content") or "", said.get("content") or ""
    half, most = len(reasoning) // 2, max(0, len(content) - 2)
    return [
        AnswerDelta(**known, reasoning=reasoning[:half]),
        AnswerDelta(**known, reasoning=reasoning),
        AnswerDelta(**known, reasoning_start=len(reasoning), content=content[: most // 2]),
        AnswerDelta(**known, reasoning_start=len(reasoning), content_start=most // 3, content=content[most // 3 : most]),
    ]


def config_of(*agents: dict[str, Any], **fleet: Any) -> RunConfig:
    return parse_run_config(
        {
            "model": {"name": "tiny"},
            "agents": agents or ({"env": "sums", "command": ["true"]},),
            "algorithm": {"steps": 1},
            "fleet": fleet,
        }
    )


def python_agent(function: str, *, env: str = "sums", **more: Any) -> dict[str, Any]:
    """An agent of bad_agents.py, judged by one of its verifiers."""
    return {
        "env": env,
        "entrypoint": f"bad_agents:{function}",
        "reward": "bad_agents:one",
        "environment": {"PYTHONPATH": str(HERE)},
        **more,
    }


def opened(episode: str = "t1-0-0", *, env: str = "sums", prompt: str = "What is 3 + 4?", **data: Any) -> EpisodeOpened:
    origin = EpisodeOrigin(group="t1", task="t1", env=env, index=0, attempt=0)
    return EpisodeOpened(
        run=RUN, episode=episode, origin=origin, shard=0, bucket=0, env=env, prompt=prompt, data=data,
        sampling=Sampling(max_tokens=64), seed=1,
    )  # fmt: skip


@dataclass
class World:
    server: MemoryServer
    tmp_path: Path
    config: RunConfig
    manager: FakeManager
    num_runners: int = 0

    def settings(self, **changed: Any) -> RunnerSettings:
        self.num_runners += 1
        given = {
            "node": NODE, "instance": f"runner-{self.num_runners}", "work_dir": self.tmp_path / "work",
            "store_url": f"file://{self.tmp_path}/store", "verifier_seconds": 3.0, "kill_grace_seconds": 0.3,
        }  # fmt: skip
        return RunnerSettings(**{**given, **changed})

    def context(self, service: Service = Service.AGENT_RUNNER) -> Context:
        return make_context(service, self.settings(), MemoryBus(self.server), capabilities=())

    async def publish(self, event: Any) -> None:
        await self.manager.context.journal.publish(event)

    async def ended(self, episode: str = "t1-0-0", *, seconds: float = 30.0) -> EpisodeEnded:
        """Waits until it is said."""
        async with asyncio.timeout(seconds):
            while True:
                found = await self.manager.context.journal.first(EpisodeEnded, RUN, episode=episode)
                if found is not None:
                    return found
                await asyncio.sleep(0.02)

    async def run_one(self, **given: Any) -> EpisodeEnded:
        event = opened(**given)
        await self.publish(event)
        return await self.ended(event.episode)


@pytest.fixture
def make_world(tmp_path: Path) -> Callable[[RunConfig], Awaitable[World]]:
    async def make(config: RunConfig) -> World:
        server = MemoryServer()
        bus = MemoryBus(server)
        for stream in run_streams(RUN):
            await bus.ensure_stream(stream)
        for consumer in run_consumers(RUN, envs=config.envs, shards=1, tags=("rollout",), buckets=1):
            await bus.ensure_consumer(consumer)
        world = World(server, tmp_path, config, None)  # type: ignore[arg-type]
        world.manager = FakeManager(world.context(Service.TRAJECTORY_MANAGER))
        await world.publish(RunStarted(run=RUN, document=config.model_dump(mode="json")))
        await world.manager.open()
        return world

    return make


async def give_lease(world: World, *, run: str | None = RUN, epoch: int = 1) -> None:
    bucket = await world.manager.context.bus.kv(LEASES_BUCKET)
    lease = Lease(run=run, role=Role.SERVE, tags=world.config.envs if run else (), epoch=epoch)
    await bucket.put(NODE, pack_record(lease))


@dataclass
class RunningService:
    context: Context
    task: asyncio.Task[None]

    async def stop(self) -> None:
        self.context.stopping.set()
        await self.task


@pytest.fixture
async def start_runner(make_world: Any) -> AsyncIterator[Callable[..., Awaitable[tuple[World, RunningService]]]]:
    """Starts a runner that holds the environment tags of the given agents."""
    started: list[RunningService] = []

    async def start(*agents: dict[str, Any], world: World | None = None, **fleet: Any) -> tuple[World, RunningService]:
        if world is None:
            world = await make_world(config_of(*agents, **fleet))
            await give_lease(world)
        context = world.context()
        runner = AgentRunner(context, world.settings(instance=context.settings.instance))
        running = RunningService(context, asyncio.create_task(runner.run()))
        started.append(running)
        return world, running

    yield start
    for running in started:
        await running.stop()


@dataclass
class GatewayWorld:
    world: World
    gateway: Gateway
    sessions: Sessions
    session: Session

    @property
    def manager(self) -> FakeManager:
        return self.world.manager

    def openai(self, kind: Any, **more: Any) -> Any:
        return kind(base_url=self.gateway.base_url, api_key=self.session.key, **more)

    def anthropic(self, kind: Any, **more: Any) -> Any:
        return kind(base_url=self.gateway.base_url.removesuffix("/v1"), api_key=self.session.key, **more)


@pytest.fixture
async def gateway(make_world: Any) -> AsyncIterator[GatewayWorld]:
    """A gateway with one session, without agents."""
    world = await make_world(config_of())
    context = world.context()
    sessions = Sessions()
    desk = CallRequests(context.bus, context.journal)
    gateway = Gateway(sessions, desk)
    await desk.open()
    await gateway.open("127.0.0.1", 0)
    yield GatewayWorld(world, gateway, sessions, sessions.open(opened(), "tiny"))
    await gateway.close()
    await desk.close()


@pytest.fixture
def python_agents() -> Callable[..., dict[str, Any]]:
    return python_agent


@pytest.fixture
def lease() -> Callable[..., Awaitable[None]]:
    return give_lease


@pytest.fixture
def make_opened() -> Callable[..., EpisodeOpened]:
    return opened


@pytest.fixture
async def start(make_world: Any) -> AsyncIterator[Callable[..., Awaitable[tuple[World, ElsewhereGateway]]]]:
    """A runner that serves the given agents, and its gateway seen from outside."""
    started: list[ElsewhereGateway] = []

    async def begin(
        *agents: dict[str, Any], world: World | None = None, fleet: Any = None, **settings: Any
    ) -> tuple[World, ElsewhereGateway]:
        if world is None:
            world = await make_world(config_of(*(agents or (external(),)), **(fleet or {})))
            await give_lease(world)
        started.append(await start_gateway(world, **settings))
        return world, started[-1]

    yield begin
    for gateway in started:
        if not gateway.task.done():
            await gateway.stop()
