"""A run on a memory bus, workers that join it, and an engine whose every token is given out by the test.

The engine's token at absolute position p is 1000 + p, whoever samples it; so a generation that was interrupted, moved or
frozen must read exactly as one that was not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file, save

from seamlessflow.bus.jetstream import JetStreamBus
from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.codec import decode, pack_record, to_message
from seamlessflow.contracts import (
    CallAbandoned,
    EpisodeEnded,
    EpisodeOrigin,
    EpisodeStatus,
    Event,
    GenerationEnded,
    GenerationFinish,
    GenerationRequested,
    Int32s,
    Lease,
    Role,
    RunStarted,
    Sampling,
    SegmentSampled,
    Service,
    WeightsHead,
)
from seamlessflow.contracts.routes import LEASES_BUCKET, WEIGHTS_BUCKET
from seamlessflow.contracts.streams import journal_stream, queue_stream, run_consumers, run_streams
from seamlessflow.errors import MalformedMessage
from seamlessflow.runtime import Context, make_context
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import model_path, publish_folder, weights_path
from seamlessflow.weights.delta import encode
from seamlessflow.weights.manifest import DELTA_FILE, version_facts
from seamlessflow.weights.safetensors_file import parse_tensors, tensor_digests
from seamlessflow_rollout_worker.config import WorkerSettings
from seamlessflow_rollout_worker.engines.base import Chunk, EngineError, Finish, SamplingParams
from seamlessflow_rollout_worker.generations.generation_state import Pace
from seamlessflow_rollout_worker.service import RolloutWorker

RUN, NODE, STOP_ID = "r1", "n1", 2
E = TypeVar("E", bound=Event)


class Ended(NamedTuple):
    """An end, with the last segment or on its own."""

    generation: str
    finish: GenerationFinish
    num_tokens: int


class HandEngine:
    """An engine that samples when the test says ``step``, or at once when ``by_itself``.

    It stops at the absolute position ``stops_at``; None: never.
    """

    def __init__(self, *, by_itself: bool = False, stops_at: int | None = None, num_slots: int = 4, context: int = 64) -> None:
        self.by_itself, self.stops_at = by_itself, stops_at
        self.num_slots, self.max_context_tokens, self.weights_version = num_slots, context, -1
        self.is_paused = self.is_asleep = False
        self.calls: list[str] = []
        self.hangs_in = ""
        self.refuses_stage: Exception | None = None
        self.refuses_load: Exception | None = None
        self.death: EngineError | None = None
        self.requests: dict[str, asyncio.Queue[Chunk | EngineError]] = {}
        self.budgets: list[int] = []
        self._positions: dict[str, list[int]] = {}

    async def start(self, model_dir: Path, *, weights_version: int) -> None:
        assert (model_dir / "config.json").is_file() and (model_dir / "model.safetensors").is_file()
        self.weights_version = weights_version
        self.calls.append("start")

    async def stop(self) -> None:
        self.calls.append("stop")
        for request_id in list(self.requests):
            await self.interrupt(request_id)

    async def generate(self, request_id: str, prompt_ids: list[int], params: SamplingParams) -> AsyncIterator[Chunk]:
        if self.death is not None:
            raise self.death
        queue = self.requests[request_id] = asyncio.Queue()
        self._positions[request_id] = [len(prompt_ids), len(prompt_ids) + params.max_tokens]
        self.budgets.append(params.max_tokens)
        try:
            if self.by_itself and not self.is_paused:
                self.step(params.max_tokens, only=request_id)
            while True:
                chunk = await queue.get()
                if isinstance(chunk, EngineError):
                    raise chunk
                yield chunk
                if chunk.finish is not None:
                    return
        finally:
            del self.requests[request_id]

    def step(self, num_tokens: int = 1, *, only: str | None = None) -> None:
        """Sample tokens for every request, unless paused."""
        assert not self.is_paused, "nothing may be sampled between pause and resume"
        for request_id in [only] if only else list(self.requests):
            ids: list[int] = []
            finish = None
            next_position, end = self._positions[request_id]
            for position in range(next_position, min(next_position + num_tokens, end)):
                ids.append(STOP_ID if position == self.stops_at else 1000 + position)
                finish = Finish.STOP if ids[-1] == STOP_ID else Finish.LENGTH if position + 1 == end else None
                if finish:
                    break
            self._positions[request_id][0] += len(ids)
            chunk = Chunk(tuple(ids), tuple(-0.5 for _ in ids), self.weights_version, finish)
            self.requests[request_id].put_nowait(chunk)

    async def interrupt(self, request_id: str) -> None:
        if self.death is not None:
            raise self.death
        if request_id in self.requests:
            self.requests[request_id].put_nowait(Chunk((), (), self.weights_version, Finish.INTERRUPTED))

    async def pause(self) -> None:
        await self._hang("pause")
        self.is_paused = True
        self.calls.append("pause")

    async def resume(self) -> None:
        self.is_paused = False
        self.calls.append("resume")
        if self.by_itself:
            self.step(1000)

    async def stage_weights(self, file: Path) -> None:
        await self._hang("read")
        if self.refuses_stage is not None:
            raise self.refuses_stage
        self.calls.append("stage")
        self._staged = (file, {name: tensor.tolist() for name, tensor in load_file(file).items()})

    async def load_weights(self, file: Path, *, weights_version: int) -> None:
        await self._hang("load")
        assert self.is_paused
        if self.refuses_load is not None:
            raise self.refuses_load
        staged, self.loaded = self._staged
        assert staged == file, "the pause covers no reading"
        self.calls.append(f"load {weights_version}")
        self.weights_version = weights_version

    async def _hang(self, where: str) -> None:
        if self.hangs_in == where:
            self.hangs_in = ""  # once
            await asyncio.Event().wait()

    async def sleep(self) -> None:
        self.is_paused = self.is_asleep = True
        self.calls.append("sleep")

    async def wake(self) -> None:
        self.is_paused = self.is_asleep = False
        self.calls.append("wake")

    def die(self) -> None:
        self.death = EngineError("out of memory")
        for queue in self.requests.values():
            queue.put_nowait(self.death)


class Worker:
    """A running service with a bus and an engine of its own."""

    def __init__(self, world: World, engine: HandEngine, node: str, bus: MemoryBus | JetStreamBus) -> None:
        self.engine, self.node, self.bus = engine, node, bus
        settings = WorkerSettings(
            node=node,
            instance=f"i-{node}",
            work_dir=world.folder / "work",
            store_url=world.store.url,
            stall_seconds=5.0,
            fetch_seconds=0.3,
        )
        self.context: Context = make_context(Service.ROLLOUT_WORKER, settings, self.bus, capabilities=("rollout",))
        self.service = RolloutWorker(self.context, settings, build=lambda config, settings, folder: engine, pace=world.pace)
        self.task = asyncio.create_task(self.service.run())

    async def kill(self) -> None:
        """As kill -9 would: nothing is handed back, nothing said."""
        await self.bus.abort()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def terminate(self) -> None:
        """As SIGTERM would."""
        self.context.stopping.set()
        await self.task


def _file_of(version: int) -> bytes:
    """The weights of a version: one tensor, full of its number."""
    return save({"w": torch.full((2,), float(version))})


class World:
    """One run, its weights, its leases, and what was said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = MemoryServer()
        self.bus: MemoryBus | JetStreamBus = MemoryBus(self.server)
        self.store = Store(f"file://{folder / 'store'}")
        self.pace = Pace(few_seconds=0.01, longest_seconds=0.02)
        self.workers: list[Worker] = []
        self._epoch = 0

    async def open_run(
        self, *, ack_wait_seconds: float = 10.0, fleet: dict[str, Any] | None = None, model: dict[str, Any] | None = None
    ) -> None:
        document = {
            "model": {"name": "tiny", "engine": "scripted"} | (model or {}),
            "agents": [{"env": "e", "entrypoint": "a:b"}, {"env": "long", "entrypoint": "a:b", "tag": "prefill"}],
            "algorithm": {"steps": 1},
            "fleet": {"slots": 4} | (fleet or {}),
        }
        for stream in run_streams(RUN):
            await self.bus.ensure_stream(stream)
        buckets = (fleet or {}).get("buckets", 1)
        for consumer in run_consumers(RUN, envs=("e",), shards=1, tags=("prefill+rollout", "rollout"), buckets=buckets):
            await self.bus.ensure_consumer(replace(consumer, ack_wait_seconds=ack_wait_seconds))
        await self.publish(RunStarted(run=RUN, document=document))

    def worker(self, node: str = NODE, *, bus: JetStreamBus | None = None, **engine: Any) -> Worker:
        worker = Worker(self, HandEngine(**engine), node, bus or MemoryBus(self.server))
        self.workers.append(worker)
        return worker

    async def lease(self, role: Role = Role.ROLLOUT, *, node: str = NODE, run: str | None = RUN, **more: Any) -> int:
        self._epoch += 1
        tags = ("rollout",) if role is Role.ROLLOUT else ()
        lease = Lease(run=run, role=role, epoch=self._epoch, **({"tags": tags} | more))
        await (await self.bus.kv(LEASES_BUCKET)).put(node, pack_record(lease))
        await self.bus.hint(f"sfhint.poke.{node}", b"")
        return self._epoch

    async def publish_model(self, **files: bytes) -> None:
        """``files``: by name, without .json."""
        named = {f"{name}.json": content for name, content in ({"config": b"{}"} | files).items()}
        publish_folder(self.store, model_path(RUN), named, {})

    async def publish_weights(self, version: int, *, head: bool = True) -> None:
        publish_folder(self.store, weights_path(RUN, version), {"model.safetensors": _file_of(version)}, {})
        if head:
            await self.move_head(version)

    async def publish_delta(self, version: int, *, before: int, head: bool = True) -> None:
        """What ``publish_weights`` would publish, as its changes to another version alone."""
        old, new = (parse_tensors(np.frombuffer(_file_of(each), np.uint8), "w")[0] for each in (before, version))
        facts = version_facts(weights_version=version, step=version, dtype="float32", base=before, tensors=tensor_digests(new))
        publish_folder(self.store, weights_path(RUN, version), {DELTA_FILE: encode(old, new)}, facts)
        if head:
            await self.move_head(version)

    async def move_head(self, version: int) -> None:
        head = WeightsHead(weights_version=version, step=version, path=weights_path(RUN, version), epoch=0)
        await (await self.bus.kv(WEIGHTS_BUCKET)).put(RUN, pack_record(head))
        await self.bus.hint(f"sfhint.weights.{RUN}", b"")

    async def ready(self, *, tokenizer: bytes | None = None, **engine: Any) -> Worker:
        """A worker that samples with version 0. ``tokenizer``: of the model's folder; None: it has none."""
        await self.open_run()
        await self.publish_model(**({} if tokenizer is None else {"tokenizer": tokenizer}))
        await self.publish_weights(0)
        worker = self.worker(**engine)
        await self.lease()
        await self.until(lambda: worker.engine.calls[:1] == ["start"])
        return worker

    async def ask(
        self, generation: str = "c1", *, prompt: tuple[int, ...] = (1, 2, 3), max_tokens: int = 8, **more: Any
    ) -> GenerationRequested:
        request = GenerationRequested(
            run=RUN,
            generation=generation,
            suffix=Int32s(prompt),
            sampling=Sampling(max_tokens=max_tokens),
            stop_token_ids=(STOP_ID,),
            seed=7,
            **({"episode": "t-0-0", "tag": "rollout", "bucket": 0, "shard": 0} | more),
        )
        await self.publish(request)
        return request

    async def abandon(self, call: str = "c1", episode: str = "t-0-0") -> None:
        await self.publish(CallAbandoned(run=RUN, episode=episode, call=call, shard=0))

    async def end_episode(self, episode: str = "t-0-0") -> None:
        origin = EpisodeOrigin(group="t", task="t", env="e", index=0, attempt=0)
        await self.publish(EpisodeEnded(run=RUN, episode=episode, shard=0, origin=origin, status=EpisodeStatus.DEADLINE))

    async def publish(self, event: Event) -> None:
        await self.bus.publish(to_message(event))

    async def said(self, kind: type[E]) -> list[E]:
        events = []
        async for record in self.bus.read(journal_stream(RUN)):
            with suppress(MalformedMessage):
                events.append(decode(record.subject, record.payload, record.headers))
        return [event for event in events if isinstance(event, kind)]

    async def ended(self) -> list[Ended]:
        """Ends in journal order, whichever message said them."""
        ends = []
        for event in await self.said(Event):
            if isinstance(event, GenerationEnded):
                ends.append(Ended(event.generation, event.finish, event.num_tokens))
            if isinstance(event, SegmentSampled) and event.finish is not None:
                ends.append(Ended(event.generation, event.finish, event.start + len(event.token_ids)))
        return ends

    async def tokens(self, generation: str = "c1") -> list[int]:
        """All tokens that count, in journal order; their offsets must fit."""
        ids: list[int] = []
        for segment in await self.said(SegmentSampled):
            if segment.generation == generation:
                assert segment.start == len(ids) and len(segment.token_ids) == len(segment.logprobs)
                ids += segment.token_ids
        return ids

    async def num_queued(self) -> int:
        """Generations that are not acknowledged."""
        return await self.bus.pending(queue_stream(Service.ROLLOUT_WORKER, RUN), "gen-rollout-0")

    async def until(self, holds: Callable[[], Any], seconds: float = 5.0) -> None:
        """Wait until something is so; fails after ``seconds``."""
        async with asyncio.timeout(seconds):
            while True:
                found = holds()
                if await found if asyncio.iscoroutine(found) else found:
                    return
                await asyncio.sleep(0.002)

    async def until_said(self, kind: type[Event], count: int = 1, *, seconds: float = 5.0) -> None:
        async def holds() -> bool:
            return len(await self.said(kind)) >= count

        await self.until(holds, seconds)

    async def until_ended(self, count: int = 1, *, seconds: float = 5.0) -> None:
        async def holds() -> bool:
            return len(await self.ended()) >= count

        await self.until(holds, seconds)

    async def until_acked(self) -> None:
        async def holds() -> bool:
            return await self.num_queued() == 0

        await self.until(holds)

    async def until_tokens(self, count: int, generation: str = "c1") -> None:
        async def holds() -> bool:
            return len(await self.tokens(generation)) >= count

        await self.until(holds)
