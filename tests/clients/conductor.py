"""Plays scheduler and trainer for a run of one episode: streams, leases, weights, and a device that is lent and comes back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch
from safetensors.torch import save

from seamlessflow.bus.jetstream import JetStreamBus
from seamlessflow.codec import pack_record
from seamlessflow.contracts import (
    EpisodeOpened,
    EpisodeOrigin,
    Event,
    Lease,
    Role,
    RoleReleased,
    RoleTaken,
    RunStarted,
    Sampling,
    Service,
    WeightsHead,
    WeightsLoaded,
)
from seamlessflow.contracts.routes import HINT_POKE, HINT_WEIGHTS, LEASES_BUCKET, WEIGHTS_BUCKET
from seamlessflow.contracts.streams import journal_stream, run_consumers, run_streams
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import MalformedMessage
from seamlessflow.runtime import Journal
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import model_path, publish_folder, weights_path
from tests.clients.scripted_model import MAX_CONTEXT_TOKENS, MAX_TOKENS, model_files
from tests.clients.task import PROMPT

ENV, TAG, SHARD = "client", "rollout", "0"
EPISODE = "add-0-0"
LOOK_SECONDS = 0.2

E = TypeVar("E", bound=Event)


def node_of(run: str, service: Service) -> str:
    """Each service is a node of its own."""
    return f"{run}-{service.value}"


class Conductor:
    """Says what scheduler and trainer would, and reads the journal."""

    def __init__(self, run: str, bus: JetStreamBus, store: Store) -> None:
        self._run, self._bus, self._store = run, bus, store
        self._journal = Journal(bus, store)
        self._epochs, self._versions = itertools.count(1), itertools.count()

    async def start_run(self, agent: dict[str, Any]) -> None:
        """``agent``: its section of the run, without the environment tag."""
        for stream in run_streams(self._run):
            await self._bus.ensure_stream(stream)
        for consumer in run_consumers(self._run, envs=(ENV,), shards=1, tags=(TAG,), buckets=1):
            await self._bus.ensure_consumer(consumer)
        document = {
            "model": {"name": "scripted", "engine": "scripted", "max_context_tokens": MAX_CONTEXT_TOKENS},
            "agents": [{"env": ENV, **agent}],
            "algorithm": {"steps": 1},
        }
        await self._journal.publish(RunStarted(run=self._run, document=document))
        publish_folder(self._store, model_path(self._run), model_files(), {})
        await self.publish_weights()

    async def open_episode(self) -> None:
        origin = EpisodeOrigin(group="add", task="add", env=ENV, index=0, attempt=0)
        opened = EpisodeOpened(
            run=self._run, episode=EPISODE, origin=origin, shard=0, bucket=0, env=ENV, prompt=PROMPT,
            sampling=Sampling(max_tokens=MAX_TOKENS), seed=1,
        )  # fmt: skip
        await self._journal.publish(opened)

    async def update_in_place(self) -> None:
        """New weights under a worker that goes on sampling; returns when it has them."""
        version = await self.publish_weights()
        await self.said(WeightsLoaded, lambda loaded: loaded.weights_version >= version)

    async def lend_device(self, seconds: float) -> None:
        """The worker freezes what it samples, the device is elsewhere, and comes back with new weights there."""
        epoch = await self.lease(Service.ROLLOUT_WORKER, Role.TRAIN, TAG)
        await self.said(RoleReleased, lambda released: released.epoch == epoch)
        await self.publish_weights()
        await asyncio.sleep(seconds)
        epoch = await self.lease(Service.ROLLOUT_WORKER, Role.ROLLOUT, TAG)
        await self.said(RoleTaken, lambda taken: taken.epoch == epoch)

    async def publish_weights(self) -> int:
        """The version, which is the run's head now."""
        version = next(self._versions)
        path = weights_path(self._run, version)
        publish_folder(self._store, path, {"model.safetensors": save({"w": torch.full((2,), float(version))})}, {})
        head = WeightsHead(weights_version=version, step=version, path=path, epoch=0)
        await (await self._bus.kv(WEIGHTS_BUCKET)).put(self._run, pack_record(head))
        await self._bus.hint(HINT_WEIGHTS.format(run=self._run), b"")
        return version

    async def lease(self, service: Service, role: Role, tag: str) -> int:
        """Its epoch."""
        node, epoch = node_of(self._run, service), next(self._epochs)
        lease = Lease(run=self._run, role=role, tags=(tag,), epoch=epoch)
        await (await self._bus.kv(LEASES_BUCKET)).put(node, pack_record(lease))
        await self._bus.hint(HINT_POKE.format(node=node), b"")
        return epoch

    async def events(self, kind: type[E]) -> list[E]:
        """All of a kind, in the journal's order."""
        found = []
        async for record in self._bus.read(journal_stream(self._run), filters=(subject_filter(kind, run=self._run),)):
            with suppress(MalformedMessage):
                event = await self._journal.open(record)
                if isinstance(event, kind):
                    found.append(event)
        return found

    async def said(self, kind: type[E], holds: Callable[[E], bool] = lambda event: True) -> E:
        """The first of a kind of which something holds; waits for as long as it takes."""
        while True:
            for event in await self.events(kind):
                if holds(event):
                    return event
            await asyncio.sleep(LOOK_SECONDS)
