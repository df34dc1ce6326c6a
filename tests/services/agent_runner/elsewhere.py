"""Agents that run elsewhere, as the tests play them: an HTTP client of a runner's gateway."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx

from seamlessflow.contracts import EpisodeOpened, EpisodeOrigin, Sampling
from seamlessflow.contracts.streams import consumer_name, queue_stream
from seamlessflow_agent_runner.service import AgentRunner

RUN = "r1"


@dataclass
class Gateway:
    """A running runner, seen from outside."""

    runner: AgentRunner
    context: Any
    task: asyncio.Task[None]
    http: httpx.AsyncClient

    @property
    def base_url(self) -> str:
        return str(self.context.presence.status.facts["gateway"])

    async def open(self, *, token: str | None = None, **body: Any) -> httpx.Response:
        return await self.http.post("/episodes", json={"wait_seconds": 10, **body}, headers=bearer(token))

    async def opened(self, **body: Any) -> dict[str, Any]:
        """One that has to come."""
        answer = await self.open(**body)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def end(self, episode: dict[str, Any], report: Any, *, key: str | None = "") -> httpx.Response:
        where, shown = f"/episodes/{episode['episode']}/reward", episode["api_key"] if key == "" else key
        if isinstance(report, bytes):
            return await self.http.post(where, content=report, headers=bearer(shown))
        return await self.http.post(where, json=report, headers=bearer(shown))

    async def state(self, episode: dict[str, Any], *, key: str | None = "") -> httpx.Response:
        return await self.http.get(f"/episodes/{episode['episode']}", headers=bearer(episode["api_key"] if key == "" else key))

    async def ask(self, url: str, key: str | None, words: str = "hello") -> httpx.Response:
        """One chat completion."""
        body = {"model": "m", "messages": [{"role": "user", "content": words}]}
        return await self.http.post(f"{url}/chat/completions", json=body, headers=bearer(key))

    async def stop(self) -> None:
        self.context.stopping.set()
        await self.task
        await self.http.aclose()

    async def kill(self) -> None:
        """As kill -9: nothing more is said, what it held comes again when its time is over."""
        await self.context.bus.abort()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.http.aclose()


async def start_gateway(world: Any, **settings: Any) -> Gateway:
    given = world.settings(**settings)
    context = world.context()
    runner = AgentRunner(context, given)
    task = asyncio.create_task(runner.run())
    async with asyncio.timeout(20):
        while "gateway" not in context.presence.status.facts:
            assert not task.done(), task.result()
            await asyncio.sleep(0.01)
    base_url = str(context.presence.status.facts["gateway"]).removesuffix("/v1")
    return Gateway(runner, context, task, httpx.AsyncClient(base_url=base_url, timeout=60))


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def external(env: str = "sums", **more: Any) -> dict[str, Any]:
    return {"env": env, "external": True, "reward": "reported", **more}


def member(task: str = "t1", index: int = 0, attempt: int = 0, *, env: str = "sums", **data: Any) -> EpisodeOpened:
    """An episode of a task's group, as the scheduler opens it."""
    origin = EpisodeOrigin(group=f"g-{task}", task=task, env=env, index=index, attempt=attempt)
    return EpisodeOpened(
        run=RUN, episode=f"g-{task}-{index}-{attempt}", origin=origin, shard=0, bucket=0, env=env, prompt=f"do {task}",
        data=data, sampling=Sampling(max_tokens=64), seed=1,
    )  # fmt: skip


def num_delivered(world: Any) -> int:
    """Episodes that are, or were, in somebody's hands."""
    queue = world.server.consumer(queue_stream("agent-runner", RUN), consumer_name("agent-runner", "sums"))
    return len(queue._num_delivered)
