"""A recorded run goes on: real scheduler, trajectory-manager and trainer on a bus in memory; agents and worker are played here.

    recording ─▶ server, store ─▶ scheduler, manager, trainer ◀─▶ played: each new episode asks once, is answered, is judged
                                                                  episodes that had begun were lost with their runner

The worker samples from the published head with plain transformers, so the trainer learns from what these weights say.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import transformers
from safetensors.torch import load_file
from torch import Tensor

from seamlessflow.bus.base import Delivery
from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.codec import decode, unpack_record
from seamlessflow.config.run import RunConfig
from seamlessflow.config.settings import Settings
from seamlessflow.contracts import (
    CallAnswered,
    CallRequested,
    EpisodeEnded,
    EpisodeOpened,
    EpisodeStarted,
    EpisodeStatus,
    Event,
    GenerationFinish,
    GenerationRequested,
    SegmentSampled,
    Service,
    WeightsHead,
    WeightsPublished,
)
from seamlessflow.contracts.routes import WEIGHTS_BUCKET
from seamlessflow.contracts.streams import all_buckets, consumer_name, generation_consumer, journal_stream, queue_stream
from seamlessflow.contracts.tags import slot_tag
from seamlessflow.errors import MalformedMessage
from seamlessflow.runtime import Context, Journal, make_context
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import WEIGHTS_FILE
from seamlessflow.weights.fetch import fetch_version
from seamlessflow_scheduler.config import SchedulerSettings
from seamlessflow_scheduler.service import Scheduler
from seamlessflow_trainer.config import TrainerSettings
from seamlessflow_trainer.service import Trainer
from seamlessflow_trajectory_manager.config import ManagerSettings
from seamlessflow_trajectory_manager.service import TrajectoryManager
from tests.services.trainer.trainer_world import Policy

from .recordings import Recording, config_of, unpack_model, unpack_store
from .small_model import NAME

TRAINER_NODE, WORKER_NODE = "local-1", "local-0"
NUM_TOKENS = 4
CREDIT = 1000
LOOK_SECONDS = 0.02
E = TypeVar("E", bound=Event)


class Resumed:
    """A recording's run, on a server and a store of its own. Enter ``living`` to let it go on."""

    def __init__(self, recording: Recording, config: RunConfig, server: MemoryServer, store: Store, folder: Path) -> None:
        self.run, self.config, self.server, self.store, self._folder = recording.run, config, server, store, folder
        self.num_recorded = recording.journal[-1].seq
        self.bus = MemoryBus(server)
        self.journal = Journal(self.bus, store)
        self._model: Any = None
        self._policy: Policy | None = None
        self._mine: set[str] = set()
        """Episodes that began here."""
        self._failed: list[Exception] = []

    @classmethod
    async def of(cls, name: str, folder: Path) -> Resumed:
        recording, store = Recording.load(name), unpack_store(name, folder)
        config = config_of(await recording.events(store))
        unpack_model(folder / "models")
        return cls(recording, config, await recording.server(config), store, folder)

    def checkpoint(self, step: int) -> dict[str, Tensor]:
        """Weights of a checkpoint; of a LoRA run its adapters."""
        return load_file(self._folder / "store" / self.run / "checkpoints" / f"{step:08d}" / WEIGHTS_FILE)

    async def published(self, weights_version: int) -> dict[str, Tensor]:
        """The same of a version, as who has nothing fetches it."""
        version = await self.journal.first(WeightsPublished, self.run, weights_version=weights_version)
        assert version is not None
        if self.config.lora is not None:
            return load_file(self._folder / "store" / version.path / "adapter_model.safetensors")
        return self._fetched(version.path, weights_version)

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """All services and the played ones, until the block ends."""
        self._model = transformers.AutoModelForCausalLM.from_pretrained(self._folder / "models" / NAME)
        scheduler = SchedulerSettings(**self._given("local-scheduler"), tick_seconds=0.05)
        manager, trainer = (
            ManagerSettings(**self._given("local-trees")),
            TrainerSettings(**self._given(TRAINER_NODE), device="cpu"),
        )
        contexts = [
            make_context(Service.SCHEDULER, scheduler, MemoryBus(self.server), capabilities=("schedule",)),
            make_context(Service.TRAJECTORY_MANAGER, manager, MemoryBus(self.server), capabilities=("serve",)),
            make_context(Service.TRAINER, trainer, MemoryBus(self.server), capabilities=("train",)),
            self._announced(Service.AGENT_RUNNER, "local-agents", "serve"),
            self._announced(Service.ROLLOUT_WORKER, WORKER_NODE, "rollout"),
        ]
        services = [
            asyncio.create_task(Scheduler(contexts[0], scheduler).run()),
            asyncio.create_task(TrajectoryManager(contexts[1]).run()),
            asyncio.create_task(Trainer(contexts[2], trainer).run()),
        ]
        presences = [asyncio.create_task(context.presence.run()) for context in contexts]
        played = await self._play()
        try:
            yield
        finally:
            for context in reversed(contexts):
                context.stopping.set()
            ends = await asyncio.gather(*services, return_exceptions=True)
            for each in presences:
                each.cancel()
            await asyncio.gather(*presences, return_exceptions=True)
            for bus in (played, *(context.bus for context in contexts)):
                await bus.close()
        assert [end for end in (*ends, *self._failed) if end is not None] == []

    async def events(self, *, new: bool = False) -> list[Event]:
        """The journal; ``new``: without what was recorded."""
        opened = []
        async for record in self.bus.read(journal_stream(self.run), start_seq=self.num_recorded + 1 if new else 1):
            try:
                opened.append(await self.journal.open(record))
            except MalformedMessage:
                continue
        return opened

    async def hears(self, kind: type[E], seconds: float = 30.0) -> E:
        """Wait for the first new event of a kind."""
        async with asyncio.timeout(seconds):
            while True:
                found = [event for event in await self.events(new=True) if isinstance(event, kind)]
                if found:
                    return found[0]
                assert self._failed == []
                await asyncio.sleep(LOOK_SECONDS)

    def _given(self, node: str) -> dict[str, Any]:
        return {
            "store_url": self.store.url,
            "node": node,
            "instance": f"{node}-resumed",
            "work_dir": self._folder / "work",
            "model_cache": self._folder / "models",
        }

    def _announced(self, service: Service, node: str, capability: str) -> Context:
        return make_context(service, Settings(**self._given(node)), MemoryBus(self.server), capabilities=(capability,))

    async def _play(self) -> MemoryBus:
        """Hear for agents and worker; closing the bus ends them, whatever they wait for."""
        bus = MemoryBus(self.server)
        tags, buckets = self.config.work_tags, self.config.fleet.buckets
        wanted: list[tuple[Service, str, Callable[[Any], Awaitable[None]]]] = [
            *((Service.AGENT_RUNNER, consumer_name(Service.AGENT_RUNNER, env), self._on_opened) for env in self.config.envs),
            *(
                (Service.ROLLOUT_WORKER, generation_consumer(tags, tag, bucket), self._on_generation)
                for tag in tags
                for bucket in all_buckets(buckets)
            ),
        ]
        for service, consumer, handler in wanted:
            await bus.consume(queue_stream(service, self.run), consumer, self._hearing(handler), credit=CREDIT)
        return bus

    def _hearing(self, handler: Callable[[Any], Awaitable[None]]) -> Callable[[Delivery], Awaitable[None]]:
        async def hear(delivery: Delivery) -> None:
            try:
                await handler(decode(delivery.subject, await self.store.attach(delivery.payload, dict(delivery.headers))))
            except Exception as wrong:
                self._failed.append(wrong)
                raise
            await delivery.ack()

        return hear

    async def _on_opened(self, opened: EpisodeOpened) -> None:
        """The queue has every episode that was ever opened."""
        if opened.episode in self._mine or await self.journal.first(EpisodeEnded, self.run, episode=opened.episode):
            return
        if await self.journal.first(EpisodeStarted, self.run, episode=opened.episode):
            await self._end(opened, EpisodeStatus.RUNNER_LOST)
            return
        self._mine.add(opened.episode)
        await self.journal.publish(EpisodeStarted(run=self.run, episode=opened.episode, runner="played"))
        request = await self._call(opened)
        await self.journal.publish(request)
        while await self.journal.first(CallAnswered, self.run, episode=opened.episode, call=request.call) is None:
            await asyncio.sleep(LOOK_SECONDS)
        await self._end(opened, EpisodeStatus.COMPLETED, reward=float(opened.origin.index % 2), num_calls=1)

    async def _end(self, opened: EpisodeOpened, status: EpisodeStatus, **fields: Any) -> None:
        same = {"run": self.run, "episode": opened.episode, "shard": opened.shard, "origin": opened.origin}
        await self.journal.publish(EpisodeEnded(**same, status=status, **fields))

    async def _call(self, opened: EpisodeOpened) -> CallRequested:
        message = {"role": "user", "content": opened.prompt}
        digest = hashlib.sha256(json.dumps(message).encode()).hexdigest()[:32]
        request = CallRequested(
            run=self.run,
            episode=opened.episode,
            call=f"c-{opened.episode}",
            shard=opened.shard,
            bucket=opened.bucket,
            origin=opened.origin,
            tag=opened.tag,
            messages=(digest,),
            unseen={digest: message},
            sampling=opened.sampling,
            seed=opened.seed,
        )
        if self.config.weights.pinned is None:
            return request
        version = (await self._head()).weights_version
        tag = slot_tag(opened.tag, version % self.config.version_slots)
        return request.model_copy(update={"weights_version": version, "tag": tag})

    async def _on_generation(self, request: GenerationRequested) -> None:
        """One segment, which is claim and end as well. Those of lost episodes are nobody's."""
        if request.episode not in self._mine:
            return
        policy = await self._sampler()
        sample = policy.sample(request.suffix, NUM_TOKENS)
        await self.journal.publish(
            SegmentSampled(
                run=self.run,
                episode=request.episode,
                generation=request.generation,
                shard=request.shard,
                nonce="n1",
                start=0,
                token_ids=sample.token_ids[-NUM_TOKENS:],
                logprobs=sample.logprobs,
                weights_version=policy.version,
                finish=GenerationFinish.LENGTH,
                worker="played",
            )
        )

    async def _sampler(self) -> Policy:
        head = await self._head()
        if self._policy is None or self._policy.version != head.weights_version:
            weights = self._fetched(head.path, head.weights_version)
            temperature = self.config.sampling.temperature
            self._policy = Policy(weights, head.weights_version, temperature, copy.deepcopy(self._model))
        return self._policy

    async def _head(self) -> WeightsHead:
        entry = await (await self.bus.kv(WEIGHTS_BUCKET)).get(self.run)
        assert entry is not None
        return unpack_record(WeightsHead, entry.value)

    def _fetched(self, path: str, weights_version: int) -> dict[str, Tensor]:
        with tempfile.TemporaryDirectory() as folder:
            fetch_version(self.store, path, weights_version, Path(folder))
            return load_file(Path(folder) / WEIGHTS_FILE)
