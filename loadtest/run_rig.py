"""A run without a scheduler, for benchmarks of its rollout-workers: a real nats-server, the run's streams and model.

The trainer's own publisher is in this process; the workers that follow it are processes of their own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from loadtest.gateway_child import Child
from seamlessflow.bus.jetstream import JetStreamBus, connect
from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.checkpoints.commit_claim import CommitClaim
from seamlessflow.codec import pack_record
from seamlessflow.config.run import RunConfig, parse_run_config
from seamlessflow.contracts import GenerationRequested, Int32s, Lease, Role, RunStarted, Sampling
from seamlessflow.contracts.routes import LEASES_BUCKET
from seamlessflow.contracts.streams import run_consumers, run_streams
from seamlessflow.local.services import interpreter_of, python_path
from seamlessflow.runtime import Journal
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import model_path, publish_folder
from seamlessflow.weights.staleness import VersionSteps
from seamlessflow_trainer.learner.model_loading import model_files, served_dtype
from seamlessflow_trainer.weights.publisher import WeightsPublisher

RUN, TAG = "load", "rollout"
READY_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be sampled. Ids of prompts are random: what they mean makes no difference to the time they take."""

    name: str
    prompt: Sequence[int]
    max_tokens: int
    stream: bool = False


class RunRig:
    """``publisher``: of full versions. ``weights``: the model's, float32, as a trainer has them."""

    def __init__(self, folder: Path, config: RunConfig, model: Path, server: EmbeddedServer, bus: JetStreamBus) -> None:
        self.folder, self.config, self.model = folder, config, model
        self.server, self.bus, self.store = server, bus, Store(f"file://{folder / 'store'}")
        self.journal = Journal(bus, self.store)
        self.dtype = served_dtype(model, config.model.dtype)
        self.weights: dict[str, Tensor] = {}
        self.workers: dict[str, Child] = {}
        self.steps = VersionSteps([])
        self._step = -1

    async def begin(self) -> None:
        """Streams, the model and version 0."""
        for stream in run_streams(RUN):
            await self.bus.ensure_stream(stream)
        for consumer in run_consumers(RUN, envs=("load",), shards=1, tags=(TAG,), buckets=1):
            await self.bus.ensure_consumer(consumer)
        await self.journal.publish(RunStarted(run=RUN, document=self.config.model_dump(mode="json", exclude_none=True)))
        await asyncio.to_thread(publish_folder, self.store, model_path(RUN), model_files(self.model, self.dtype), {})
        for shard in sorted(self.model.glob("*.safetensors")):
            self.weights |= {name: tensor.float() for name, tensor in load_file(shard).items()}
        await self.publish(await self.publisher(full_every=1))

    async def publisher(self, *, full_every: int) -> WeightsPublisher:
        """The trainer's, taking over from the one before."""
        claim = CommitClaim(self.bus, self.journal, RUN, "load test")
        await claim.take()
        made = WeightsPublisher(self.bus, self.store, self.journal, claim, RUN, self.steps, self.dtype, full_every=full_every)
        await made.join()
        return made

    async def publish(self, publisher: WeightsPublisher) -> int:
        """The weights as they are, as the next version; returns its number."""
        self._step += 1
        return (await publisher.publish(self.weights, step=self._step, epoch=0)).weights_version

    def learn(self, learning_rate: float, seed: int) -> None:
        """Move every weight by the whole rate, up or down, as the first step of an optimiser does."""
        stream = torch.Generator().manual_seed(seed)
        for tensor in self.weights.values():
            signs = torch.randint(0, 2, tensor.shape, generator=stream, dtype=torch.int8)
            tensor.add_(signs.mul_(2).sub_(1), alpha=learning_rate)

    async def start_worker(self, node: str, *, threads: int | None = None, owns: bool = True) -> Child:
        """A measured rollout-worker that samples. ``owns``: it is the first that is asked."""
        environment = {
            "OMP_WAIT_POLICY": "passive",
            **({} if threads is None else {"OMP_NUM_THREADS": str(threads)}),
            **os.environ,
            "PYTHONPATH": python_path(),
            "SEAMLESSFLOW_NATS_URL": self.server.url,
            "SEAMLESSFLOW_STORE_URL": self.store.url,
            "SEAMLESSFLOW_WORK_DIR": str(self.folder / "work"),
            "SEAMLESSFLOW_NODE": node,
        }
        environment.pop("SEAMLESSFLOW_INSTANCE", None)
        python = str(interpreter_of(self.config.model.engine))
        worker = await Child.start([python, "-m", "loadtest.measured_worker"], environment, self.folder / f"{node}.log")
        self.workers[node] = worker
        lease = Lease(run=RUN, role=Role.ROLLOUT, tags=(TAG,), epoch=1, buckets=(0,) if owns else ())
        await (await self.bus.kv(LEASES_BUCKET)).put(node, pack_record(lease))
        async with asyncio.timeout(READY_SECONDS):
            await worker.heard()
        return worker

    async def ask(self, request: Request, *, seed: int = 0) -> None:
        """Publish it for a worker, as a trajectory-manager does."""
        await self.journal.publish(
            GenerationRequested(
                run=RUN,
                episode=f"{request.name}-0",
                generation=request.name,
                tag=TAG,
                bucket=0,
                shard=0,
                suffix=Int32s(request.prompt),
                sampling=Sampling(temperature=1.0, max_tokens=request.max_tokens),
                stop_token_ids=(),
                stream=request.stream,
                seed=seed,
            )
        )

    def check(self) -> None:
        """Raises RuntimeError with the last words of a worker that has ended."""
        for node, worker in self.workers.items():
            if not worker.is_running:
                raise RuntimeError(f"{node} has ended; its last words: {worker.last_words()}")

    async def close(self) -> None:
        await asyncio.gather(*(worker.stop() for worker in self.workers.values()))
        await self.bus.close()
        self.server.stop()


@asynccontextmanager
async def open_rig(
    folder: Path, model: Path, *, engine: str, slots: int, context: int, **more: object
) -> AsyncIterator[RunRig]:
    """A run of one model that has begun, without workers. ``more``: of the run file's model section."""
    config = parse_run_config(run_document(model, engine=engine, slots=slots, context=context, **more), source="the benchmark")
    server = EmbeddedServer(folder / "nats").start()
    rig = RunRig(folder, config, model, server, await connect(server.url, name="load"))
    try:
        await rig.begin()
        yield rig
    finally:
        await rig.close()


def run_document(model: Path, *, engine: str, slots: int, context: int, **more: object) -> dict[str, object]:
    """A run file of which only model and slots matter."""
    return {
        "model": {"name": str(model), "engine": engine, "max_context_tokens": context, **more},
        "agents": [{"env": "load", "command": ["true"]}],
        "algorithm": {"steps": 1_000_000},
        "fleet": {"slots": slots},
    }


def interpreter_environment(threads: int | None = None) -> Mapping[str, str]:
    """Of a process that is compared with a worker: the same settings of threads."""
    counted = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return {"OMP_WAIT_POLICY": "passive", **counted, **os.environ, "PYTHONPATH": python_path()}
