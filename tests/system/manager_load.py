"""A run with a real scheduler and real managers, in processes of their own or in this one; agents and engine are played here.

The scheduler opens the episodes and leases the shards. Each episode asks again and again, waits for the hint or looks into the
journal each second as a gateway does; beside that it asks something new every second, whatever is still unanswered. Every
call's times are kept.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seamlessflow.bus.base import Bus, Delivery
from seamlessflow.codec import decode, unpack_record
from seamlessflow.contracts import (
    CallAnswered,
    EpisodeOpened,
    GenerationRequested,
    Lease,
    NodeStatus,
    RunRequested,
    SamplesReady,
    Service,
    TaskSubmitted,
)
from seamlessflow.contracts.routes import CONTROL_STREAM, LEASES_BUCKET, NODES_BUCKET
from seamlessflow.contracts.streams import consumer_name, journal_stream, queue_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import Unavailable
from seamlessflow.runtime import Journal
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import model_path, publish_folder
from seamlessflow_trajectory_manager.replay import replay_run
from seamlessflow_trajectory_manager.replay_comparison import Comparison
from tests.domain.trajectory_builders import RUN, Agent, Engine, joined, user
from tests.services.trajectory_manager.trajectory_world import model_files

from .manager_services import Services

LOOK_SECONDS = 1.0
THINK_SECONDS = 0.25
"""How long a generation takes, and an agent between two calls."""
ASIDE_SECONDS = 1.0
CREDIT = 64
GROUP_SIZE = 2


@dataclass
class Waited:
    """One call. Monotonic seconds; ``answered`` None: not yet."""

    began: float
    answered: float | None = None


class ManagerLoad:
    """``num_episodes`` go on until ``finish``."""

    def __init__(self, services: Services, folder: Path, *, num_shards: int = 4, num_episodes: int = 16) -> None:
        self.num_shards, self.num_episodes = num_shards, num_episodes
        self.calls: list[Waited] = []
        self.hints: dict[str, asyncio.Future[CallAnswered]] = {}
        self.services = services
        self._store = Store(f"file://{folder}/store")
        self._episodes: list[asyncio.Task[None]] = []
        self._engines: dict[str, Engine] = {}
        self._finishing = self._is_closed = False
        self._bus: Bus

    async def start(self, *managers: str) -> None:
        """Services, run, episodes; returns when every episode was answered twice."""
        self._bus = await self.services.connect()
        self._journal = Journal(self._bus, self._store)
        publish_folder(self._store, model_path(RUN), model_files(), {})
        await self.services.start("scheduler", Service.SCHEDULER)
        for node in managers:
            await self.services.start(node, Service.TRAJECTORY_MANAGER)
        await self.until(lambda: self._has_stream(CONTROL_STREAM))
        await self._journal.publish(RunRequested(run=RUN, document=self._document()))
        await self.until(lambda: self._has_stream(queue_stream(Service.AGENT_RUNNER, RUN)))
        self._inbox = self._bus.inbox()
        await self._bus.on_hint(self._inbox, self._on_hint)
        await self._consume(Service.ROLLOUT_WORKER, "rollout.0", self._on_generation, priority=0)
        await self._consume(Service.AGENT_RUNNER, "env", self._on_opened)
        for number in range(self.num_episodes // GROUP_SIZE):
            await self._journal.publish(TaskSubmitted(run=RUN, task=f"t{number}", env="env", prompt="go on", data={}))
        await self.until(lambda: sum(call.answered is not None for call in self.calls) >= 2 * self.num_episodes)

    async def shards_of(self, node: str) -> tuple[str, ...]:
        """What its lease names now."""
        entry = await (await self._bus.kv(LEASES_BUCKET)).get(node)
        return () if entry is None else unpack_record(Lease, entry.value).tags

    async def served_by(self, node: str) -> str:
        """What a manager says that it does."""
        entry = await (await self._bus.kv(NODES_BUCKET)).get(f"{node}.{Service.TRAJECTORY_MANAGER.value}")
        return "" if entry is None else unpack_record(NodeStatus, entry.value).state

    async def until(self, holds: Callable[[], Any], seconds: float = 60.0) -> None:
        """Wait for something that comes true; ``holds`` may be a coroutine function."""
        async with asyncio.timeout(seconds):
            while not (await held if asyncio.iscoroutine(held := holds()) else held):
                for episode in self._episodes:
                    if episode.done() and not self._finishing:
                        episode.result()
                await asyncio.sleep(0.02)

    def longest_new(self, since: float) -> float:
        """Longest wait in seconds of a call that began after that."""
        waits = [(call.answered or time.monotonic()) - call.began for call in self.calls if call.began >= since]
        return max(waits, default=0.0)

    def in_flight(self, at: float) -> list[float]:
        """How much longer in seconds each call waited that was being answered then."""
        ends = [call.answered or time.monotonic() for call in self.calls if call.began < at]
        return [end - at for end in ends if end > at]

    async def finish(self) -> Comparison:
        """End all episodes, wait for their samples; what a fresh manager would say, beside what was said."""
        self._finishing = True
        await asyncio.wait_for(asyncio.gather(*self._episodes), 60)
        await self.until(self._all_are_judged)
        return await replay_run(self._bus, self._store, RUN)

    async def close(self) -> None:
        self._is_closed = True
        for task in self._episodes:
            task.cancel()
        await asyncio.gather(*self._episodes, return_exceptions=True)
        await self.services.close()
        await self._bus.close()

    def _document(self) -> dict[str, Any]:
        return {
            "model": {"name": "made-for-tests", "max_context_tokens": 200_000},
            "agents": [{"env": "env", "command": ["true"]}],
            "algorithm": {"steps": 1, "groups_per_step": self.num_episodes, "group_size": GROUP_SIZE, "max_staleness": 0},
            "fleet": {"shards": self.num_shards},
            "evaluation": {"before": False, "after": False},
        }

    async def _has_stream(self, name: str) -> bool:
        return name in await self._bus.stream_names()

    async def _consume(self, service: Service, part: str, handler: Callable[[Any], Any], priority: int | None = None) -> None:
        async def on_delivery(delivery: Delivery) -> None:
            await handler(decode(delivery.subject, await self._store.attach(delivery.payload, dict(delivery.headers))))
            await delivery.ack()

        queue, consumer = queue_stream(service, RUN), consumer_name(service, part)
        await self._bus.consume(queue, consumer, on_delivery, credit=CREDIT, priority=priority)

    async def _on_opened(self, opened: EpisodeOpened) -> None:
        if opened.episode not in self._engines:
            self._engines[opened.episode] = Engine()
            self._episodes.append(asyncio.create_task(self._live(opened)))

    async def _on_generation(self, request: GenerationRequested) -> None:
        await asyncio.sleep(THINK_SECONDS)
        engine = self._engines[request.episode]
        if request.generation not in engine.fed:
            await self._journal.publish_all(joined(engine.generates(request, "the sum is seven<|im_end|>", cuts=[5])))

    async def _on_hint(self, payload: bytes) -> None:
        answer = decode(self._inbox, payload)
        if isinstance(answer, CallAnswered) and answer.call in self.hints and not self.hints[answer.call].done():
            self.hints[answer.call].set_result(answer)

    async def _live(self, opened: EpisodeOpened) -> None:
        agent, history, asides = Agent(opened.episode), [user(opened.prompt)], list[asyncio.Task[CallAnswered]]()
        number, aside_at = 0, 0.0
        main = asyncio.create_task(self._ask(agent, history, opened))
        while not self._finishing:
            if time.monotonic() - aside_at >= ASIDE_SECONDS:
                aside_at = time.monotonic()
                asides.append(asyncio.create_task(self._ask(agent, [user(f"aside {len(asides)}")], opened)))
            await asyncio.wait({main}, timeout=THINK_SECONDS)
            if main.done():
                number += 1
                history += [main.result().message, user(f"and {number}?")]
                await asyncio.sleep(THINK_SECONDS)
                main = asyncio.create_task(self._ask(agent, history, opened))
        answers = await asyncio.gather(main, *asides)
        assert all(answer.error is None for answer in answers)
        ends = agent.ends(num_calls=number + len(answers)).model_copy(update={"shard": opened.shard, "origin": opened.origin})
        await self._journal.publish(ends)

    async def _ask(self, agent: Agent, history: list[dict[str, Any]], opened: EpisodeOpened) -> CallAnswered:
        call = f"c{secrets.token_hex(8)}"
        asked = agent.asks(history, reply=self._inbox, call=call, shard=opened.shard, bucket=opened.bucket)
        asked = asked.model_copy(update={"origin": opened.origin})
        hinted = self.hints[call] = asyncio.get_running_loop().create_future()
        waited = Waited(time.monotonic())
        self.calls.append(waited)
        await self._journal.publish(asked)
        while not self._is_closed:  # before Python 3.12 a cancellation that meets a time-out can be swallowed
            done, _ = await asyncio.wait({hinted}, timeout=LOOK_SECONDS)
            answer = hinted.result() if done else None
            with suppress(Unavailable):
                answer = answer or await self._journal.first(CallAnswered, RUN, episode=opened.episode, call=call)
            if answer is not None:
                waited.answered = time.monotonic()
                del self.hints[call]
                return answer
        raise asyncio.CancelledError

    async def _all_are_judged(self) -> bool:
        judged = 0
        async for _ in self._bus.read(journal_stream(RUN), filters=(subject_filter(SamplesReady, run=RUN),)):
            judged += 1
        return judged >= len(self._episodes)
