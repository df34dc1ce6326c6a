"""A run with eight versions in a store, its server, and the command that looks at them: what its tests share."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import numpy as np
from typer.testing import CliRunner

from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.cli import app
from seamlessflow.client import Client
from seamlessflow.codec import pack_record
from seamlessflow.contracts import RunEnded, WeightsHead, WeightsPublished
from seamlessflow.contracts.routes import WEIGHTS_BUCKET
from seamlessflow.contracts.streams import run_streams
from seamlessflow.errors import SeamlessFlowError
from seamlessflow.runtime.journal import Journal
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights import WEIGHTS_FILE, model_path, publish_folder, weights_path
from seamlessflow.weights.delta import encode
from seamlessflow.weights.manifest import DELTA_FILE, version_facts
from seamlessflow.weights.safetensors_file import tensor_digests
from tests.store.weights_builders import Tensors, safetensors, stepped, tensor

RUN = "demo"
FULL = (0, 3, 6)
NEWEST = 7
STREAM = np.random.default_rng(0)
FIRST = {"body": tensor("BF16", 0x3E80 + STREAM.integers(0, 128, 3000), (30, 100)), "ids": tensor("I64", range(10))}
LINE: list[Tensors] = list(
    itertools.accumulate(range(NEWEST + 9), lambda now, seed: stepped(now, share=0.03, farthest=2, seed=seed), initial=FIRST)
)


class Said(NamedTuple):
    """What a command said, and its exit code."""

    code: int
    words: str


def command(*arguments: str) -> Said:
    """As from a shell."""
    result = CliRunner().invoke(app, ["weights", *arguments])
    if isinstance(result.exception, SeamlessFlowError):
        return Said(2, str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.output)


def path_of(version: int) -> str:
    return weights_path(RUN, version, "a")


def publish(store: Store, version: int, *, is_full: bool = False) -> None:
    """A version as a trainer writes it: its changes, and every so often (or ``is_full``) the whole."""
    now, files, base = LINE[version], {}, None
    if version:
        files[DELTA_FILE], base = encode(LINE[version - 1], now), version - 1
    if is_full or version in FULL:
        files[WEIGHTS_FILE] = safetensors(now)
    facts = version_facts(
        weights_version=version,
        step=version,
        dtype="bfloat16",
        base=base,
        base_path=None if base is None else path_of(base),
        tensors=tensor_digests(now),
    )
    publish_folder(store, path_of(version), files, facts)


async def publish_version(client: Client, version: int) -> None:
    path = path_of(version)
    published = WeightsPublished(run=RUN, weights_version=version, step=version, path=path, num_bytes=1, wall_seconds=0.0)
    await Journal(client.bus, client.store).publish(published)
    head = WeightsHead(weights_version=version, step=version, path=path, epoch=0)
    await (await client.bus.kv(WEIGHTS_BUCKET)).put(RUN, pack_record(head))


class Place:
    """A run with versions 0 to 7 in a store, and its server."""

    def __init__(self, store: Store, server: EmbeddedServer) -> None:
        self.store, self.server = store, server
        self.places = ("--nats", server.url, "--store", store.url)

    def do(self, work: Callable[[Client], Awaitable[None]]) -> None:
        """Something on the bus, by a client of its own."""

        async def with_client() -> None:
            async with Client.open(self.server.url, self.store.url) as client:
                await work(client)

        asyncio.run(with_client())

    def begin(self) -> None:
        publish_folder(self.store, model_path(RUN), {"config.json": b"{}", "tokenizer.json": b"{}"}, {})
        for version in range(NEWEST + 1):
            publish(self.store, version)

        async def events(client: Client) -> None:
            for spec in run_streams(RUN):
                await client.bus.ensure_stream(spec)
            for version in range(NEWEST + 1):
                await publish_version(client, version)

        self.do(events)

    def end(self) -> None:
        async def events(client: Client) -> None:
            await Journal(client.bus, client.store).publish(RunEnded(run=RUN, reason="completed", steps=NEWEST))

        self.do(events)

    def damage(self, version: int, name: str) -> None:
        path = f"{path_of(version)}/{name}"
        content = bytearray(self.store.read(path))
        content[-1] ^= 1
        self.store.write(path, bytes(content))

    @property
    def folders(self) -> list[int]:
        """Numbers of what is in the store."""
        return [int(name.split("-")[0]) for name in self.store.folders(f"{RUN}/weights")]
