"""A run on a memory bus: a gateway that asks and waits, a worker that samples what a script says, managers that come and go."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from seamlessflow.bus.base import Delivery
from seamlessflow.bus.jetstream import JetStreamBus
from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.codec import decode, pack_record
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import (
    AnswerDelta,
    CallAnswered,
    CallRequested,
    Event,
    GenerationRequested,
    Lease,
    Role,
    RunStarted,
    Service,
)
from seamlessflow.contracts.routes import LEASES_BUCKET
from seamlessflow.contracts.streams import journal_stream, queue_stream, run_consumers, run_streams
from seamlessflow.errors import MalformedMessage
from seamlessflow.runtime import Journal, make_context
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import model_path, publish_folder
from seamlessflow_trajectory_manager.service import TrajectoryManager
from tests.domain.trajectory_builders import CHATML, RUN, Agent, Engine, ids_of, joined, tokenizer

NODE = "trees"
DOCUMENT = {
    "model": {"name": "made-for-tests", "max_context_tokens": 2000},
    "agents": [{"env": "env", "command": ["true"]}],
    "algorithm": {"steps": 1},
}
E = TypeVar("E", bound=Event)
AnyBus = MemoryBus | JetStreamBus


def content_of(deltas: list[AnswerDelta]) -> str:
    """As a reader puts it together: what it has is dropped, and after a gap it waits for the answer."""
    text = ""
    for delta in deltas:
        if delta.content_start <= len(text):
            text += delta.content[len(text) - delta.content_start :]
    return text


def model_files() -> dict[str, bytes]:
    """What the trainer publishes for the tokenizer's sake."""
    return {
        "tokenizer.json": tokenizer()._tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps({"eos_token": "<|im_end|>"}).encode(),
        "chat_template.jinja": CHATML.encode(),
        "generation_config.json": json.dumps({"eos_token_id": tokenizer().eos_token_id}).encode(),
    }


@dataclass
class Running:
    """A manager process that can be stopped in order or killed."""

    bus: AnyBus
    stopping: asyncio.Event
    task: asyncio.Task[None]
    service: TrajectoryManager

    async def stop(self) -> None:
        self.stopping.set()
        await self.task
        await self.bus.close()

    async def kill(self) -> None:
        self.task.cancel()
        await self.bus.abort()
        await asyncio.gather(self.task, return_exceptions=True)


class World:
    """Everything around the trajectory-manager."""

    def __init__(self, folder: Path, bus: AnyBus | None = None) -> None:
        """``bus`` None: in memory."""
        self.server = MemoryServer()
        self.bus: AnyBus = bus or MemoryBus(self.server)
        self.store = Store(f"file://{folder}/store")
        self.journal = Journal(self.bus, self.store)
        self.agent, self.engine = Agent(), Engine()
        self.script: list[str] = []
        self.hints: list[CallAnswered] = []
        self.deltas: list[AnswerDelta] = []
        self._folder = folder
        self._epoch = 0
        self._managers: list[Running] = []

    async def start_run(self, ack_wait_seconds: float = 0.5) -> None:
        for stream in run_streams(RUN):
            await self.bus.ensure_stream(stream)
        for consumer in run_consumers(RUN, envs=["env"], shards=1, tags=["rollout"], buckets=1):
            await self.bus.ensure_consumer(replace(consumer, ack_wait_seconds=ack_wait_seconds))
        await self.journal.publish(RunStarted(run=RUN, document=DOCUMENT))

    def publish_model(self) -> None:
        publish_folder(self.store, model_path(RUN), model_files(), {})

    async def lease(self, run: str | None = RUN, shards: tuple[str, ...] = ("0",)) -> None:
        self._epoch += 1
        lease = Lease(run=run, role=Role.SERVE, tags=shards, epoch=self._epoch)
        await (await self.bus.kv(LEASES_BUCKET)).put(NODE, pack_record(lease))

    async def start_manager(self, bus: AnyBus | None = None) -> Running:
        bus = bus or MemoryBus(self.server)
        settings = Settings(node=NODE, store_url=self.store.url, work_dir=self._folder / "work")
        context = make_context(Service.TRAJECTORY_MANAGER, settings, bus, capabilities=("serve",))
        service = TrajectoryManager(context)
        running = Running(bus, context.stopping, asyncio.create_task(service.run()), service)
        self._managers.append(running)
        return running

    async def start_worker(self) -> None:
        """Answers each generation with the next line of the script; without one the test does it by hand."""

        async def on_delivery(delivery: Delivery) -> None:
            request = decode(delivery.subject, await self.store.attach(delivery.payload, dict(delivery.headers)))
            assert isinstance(request, GenerationRequested)
            if self.script:
                await self.journal.publish_all(
                    joined(self.engine.generates(request, self.script.pop(0) + "<|im_end|>", cuts=[3]))
                )
            await delivery.ack()

        queue = queue_stream(Service.ROLLOUT_WORKER, RUN)
        await self.bus.consume(queue, "gen-rollout-0", on_delivery, credit=8, priority=0)

    async def ask(self, messages: list[dict[str, Any]], **fields: Any) -> CallRequested:
        """As a gateway: the answer is hinted to an inbox of its own."""
        inbox = self.bus.inbox()

        async def on_hint(payload: bytes) -> None:
            said = decode("", payload)
            if isinstance(said, AnswerDelta):
                self.deltas.append(said)
            else:
                assert isinstance(said, CallAnswered)
                self.hints.append(said)

        await self.bus.on_hint(inbox, on_hint)
        event = self.agent.asks(messages, reply=inbox, **fields)
        await self.journal.publish(event)
        return event

    async def answer(self, call: str) -> CallAnswered:
        """The stored answer, as a gateway without luck with hints finds it."""
        return await self.found(CallAnswered, call=call)

    async def turn(self, messages: list[dict[str, Any]], said: str, **fields: Any) -> CallAnswered:
        self.script.append(said)
        event = await self.ask(messages, **fields)
        return await self.answer(event.call)

    async def generate(self, request: GenerationRequested, said: str, *, upto: int | None = None) -> None:
        """Say the first ``upto`` events of a generation."""
        for event in self.engine.generates(request, ids_of(said), cuts=[2])[:upto]:
            await self.journal.publish(event)

    async def events(self, kind: type[E], **fields: object) -> list[E]:
        found = []
        async for record in self.bus.read(journal_stream(RUN)):
            with suppress(MalformedMessage):
                event = await self.journal.open(record)
                if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items()):
                    found.append(event)
        return found

    async def find(self, kind: type[E], **fields: object) -> E | None:
        found = await self.events(kind, **fields)
        return found[0] if found else None

    async def found(self, kind: type[E], **fields: object) -> E:
        """The event, which must come within seconds."""
        async with asyncio.timeout(12):
            while (found := await self.find(kind, **fields)) is None:
                await asyncio.sleep(0.005)
        return found

    async def shown(self, text: str, *, since: int = 0) -> list[AnswerDelta]:
        """The deltas from the ``since``-th on, as soon as they make up a content, which must be within seconds."""
        async with asyncio.timeout(12):
            while content_of(self.deltas[since:]) != text:
                await asyncio.sleep(0.001)
        return self.deltas[since:]

    async def queue_is_empty(self) -> None:
        """All that was delivered to managers is acknowledged."""
        async with asyncio.timeout(12):
            while await self.bus.pending(queue_stream(Service.TRAJECTORY_MANAGER, RUN), "shard-0"):
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        for manager in self._managers:
            if not manager.task.done():
                await manager.kill()
        await self.bus.close()
