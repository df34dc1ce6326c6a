"""A run whose episodes keep their weights version, and workers with two real (scripted) engines each."""

from __future__ import annotations

import asyncio
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save, save_file

from seamlessflow.bus.memory.bus import MemoryBus
from seamlessflow.config.run import parse_run_config
from seamlessflow.contracts import RunStarted, Sampling, SegmentSampled, Service, WeightsPublished
from seamlessflow.contracts.streams import generation_consumer, queue_stream, run_consumers, run_streams
from seamlessflow.runtime import make_context
from seamlessflow.weights import publish_folder, weights_path
from seamlessflow_rollout_worker.config import WorkerSettings
from seamlessflow_rollout_worker.engines.base import SamplingParams
from seamlessflow_rollout_worker.engines.scripted_engine import ScriptedEngine
from seamlessflow_rollout_worker.service import RolloutWorker
from tests.services.rollout_worker.rollout_world import RUN, STOP_ID, Worker, World

VOCABULARY = 32
SLOTS = 4
TAGS = tuple(f"rollout+v{slot}" for slot in range(SLOTS))
DOCUMENT: dict[str, Any] = {
    "model": {"name": "tiny", "engine": "scripted"},
    "agents": [{"env": "e", "entrypoint": "a:b"}],
    "algorithm": {"steps": 1, "max_staleness": 2},
    "fleet": {"slots": 4},
    "weights": {"pinned": "episode"},
}
SECONDS_PER_TOKEN = 0.004


def table(version: int) -> torch.Tensor:
    """Weights of a version: each draws other tokens, and none the stop token."""
    numbers = [[3 * math.sin((version + 1) * (32 * row + column)) for column in range(VOCABULARY)] for row in range(VOCABULARY)]
    made = torch.tensor(numbers)
    made[:, STOP_ID] = -100.0
    return made


class TableEngine(ScriptedEngine):
    """A scripted engine that serves what is in the folder it starts from."""

    async def start(self, model_dir: Path, *, weights_version: int) -> None:
        await super().start(model_dir, weights_version=weights_version)
        assert self._policy is not None
        read = self._policy.read_table(model_dir / "model.safetensors")
        assert read is not None
        self._policy.overwrite(read)


def _engine(seconds_per_token: float) -> TableEngine:
    return TableEngine(vocab_size=VOCABULARY, num_slots=4, seconds_per_token=seconds_per_token)


class KeptWorker(Worker):
    """A running service whose engine is two scripted ones."""

    def __init__(self, world: KeptWorld, node: str, seconds_per_token: float) -> None:
        self.node, self.bus = node, MemoryBus(world.server)
        settings = WorkerSettings(
            node=node, instance=f"i-{node}", work_dir=world.folder / "work", store_url=world.store.url, fetch_seconds=2.0
        )
        self.context = make_context(Service.ROLLOUT_WORKER, settings, self.bus, capabilities=("rollout",))

        def build(config: object, settings: object, folder: Path) -> TableEngine:
            return _engine(seconds_per_token)

        self.service = RolloutWorker(self.context, settings, build=build, pace=world.pace)
        self.task = asyncio.create_task(self.service.run())

    @property
    def versions(self) -> tuple[int, ...]:
        """What it says it has."""
        return self.context.presence.status.versions


class KeptWorld(World):
    async def open_kept(self, *versions: int, engine: str = "scripted") -> None:
        """A run with these versions published, the last one as its head; what real engines start from is the test's."""
        tags = parse_run_config(DOCUMENT).work_tags
        assert tags == TAGS
        for stream in run_streams(RUN):
            await self.bus.ensure_stream(stream)
        for consumer in run_consumers(RUN, envs=("e",), shards=1, tags=tags, buckets=1):
            await self.bus.ensure_consumer(replace(consumer, ack_wait_seconds=1.0))
        await self.publish(RunStarted(run=RUN, document=DOCUMENT | {"model": {"name": "tiny", "engine": engine}}))
        if engine == "scripted":
            await self.publish_model()
        for version in versions:
            await self.publish_version(version)

    async def publish_version(self, version: int) -> None:
        """Make a version the newest."""
        path = weights_path(RUN, version)
        publish_folder(self.store, path, {"model.safetensors": save({"logits": table(version)})}, {})
        facts = {"step": version, "path": path, "num_bytes": 1, "wall_seconds": 0.0}
        await self.publish(WeightsPublished(run=RUN, weights_version=version, **facts))
        await self.move_head(version)

    def kept_worker(self, node: str = "n1", seconds_per_token: float = SECONDS_PER_TOKEN) -> KeptWorker:
        worker = KeptWorker(self, node, seconds_per_token)
        self.workers.append(worker)
        return worker

    async def tell(self, node: str = "n1", **more: Any) -> None:
        """A lease that lets a node roll out: ``keeps``, ``let_go``."""
        await self.lease(node=node, tags=TAGS, **more)

    async def start(self, *nodes: str, version: int = 0) -> list[KeptWorker]:
        """Workers that have this version alone."""
        await self.open_kept(version)
        workers = [self.kept_worker(node) for node in nodes or ("n1",)]
        for worker in workers:
            await self.tell(worker.node)
            await self.until_has(worker, version)
        return workers

    async def until_has(self, worker: KeptWorker, *versions: int) -> None:
        await self.until(lambda: worker.versions == versions)

    async def update(self, version: int, *workers: KeptWorker) -> None:
        """A newer version, until these have it."""
        await self.publish_version(version)
        for worker in workers:
            await self.until(lambda worker=worker: worker.versions[-1:] == (version,))

    async def keep(self, generation: str, version: int, **more: Any) -> None:
        """A generation of an episode that keeps a version."""
        await self.ask(generation, tag=TAGS[version % SLOTS], weights_version=version, **more)

    async def num_queued(self) -> int:
        """Generations that are not acknowledged, whatever they keep."""
        queue = queue_stream(Service.ROLLOUT_WORKER, RUN)
        return sum([await self.bus.pending(queue, generation_consumer(TAGS, tag, 0)) for tag in TAGS])

    async def versions_of(self, generation: str) -> list[int]:
        """Of each token, in order."""
        segments = [each for each in await self.said(SegmentSampled) if each.generation == generation]
        return [each.weights_version for each in segments for _ in each.token_ids]


async def tokens_under(version: int, max_tokens: int, prompt: tuple[int, ...] = (1, 2, 3)) -> list[int]:
    """What an engine samples for a generation that never had any weights but these."""
    engine, sampling = _engine(0.0), Sampling()
    with tempfile.TemporaryDirectory() as folder:
        save_file({"logits": table(version)}, Path(folder) / "model.safetensors")
        await engine.start(Path(folder), weights_version=version)
    how = SamplingParams(sampling.temperature, sampling.top_p, max_tokens, (STOP_ID,), seed=7)
    sampled = [token async for chunk in engine.generate("r", list(prompt), how) for token in chunk.token_ids]
    await engine.stop()
    return sampled
