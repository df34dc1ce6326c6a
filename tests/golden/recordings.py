"""Recorded runs: journals and stores as the services of one commit left them, for later ones to fold, resume and replay.

    tests/golden/model.tar.xz              the base model of all runs, as a folder of the model cache (``small_model``)
    tests/golden/<name>/journal.msgpack.xz streams J_<run> and CTL with sequences, times, headers; key-value buckets
    tests/golden/<name>/store.tar.xz       what is below <run>/ in the object store
    tests/golden/<name>/facts.json         for people and for tests: which scenario, of which commit, what a fold comes to

``record`` makes them (with a real nats-server and real services), ``Recording.load`` reads one, ``Recording.server`` puts it
on a bus in memory. Which deliveries were acknowledged is not recorded: queues are filled anew from the journal, as those of
a server that lost all its acknowledgements.
"""

from __future__ import annotations

import json
import lzma
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import msgpack

from seamlessflow.bus.base import Record
from seamlessflow.bus.memory.bus import MemoryBus, MemoryServer
from seamlessflow.config.run import RunConfig, parse_run_config
from seamlessflow.contracts import Event
from seamlessflow.contracts.routes import LEASES_BUCKET, RUNS_BUCKET, WEIGHTS_BUCKET
from seamlessflow.contracts.streams import control_streams, journal_stream, run_consumers, run_streams
from seamlessflow.errors import MalformedMessage
from seamlessflow.runtime import Journal
from seamlessflow.store.large_payloads import Store

FOLDER = Path(__file__).parent
JOURNAL_FILE, STORE_FILE, FACTS_FILE = "journal.msgpack.xz", "store.tar.xz", "facts.json"
MODEL_FILE = FOLDER / "model.tar.xz"
BUCKETS = (WEIGHTS_BUCKET, RUNS_BUCKET, LEASES_BUCKET)
"""Those whose values outlive their writers. Presence (NODES) and readers' leases expire; no run had ORDERS."""
NAMES = ("tools", "killed", "durable", "kept", "lora", "queue")
_COMPRESSION = 9 | lzma.PRESET_EXTREME


@dataclass(frozen=True)
class Recording:
    """One run. ``streams``: records by name of the stream, in order. ``buckets``: values by bucket and key."""

    run: str
    streams: Mapping[str, Sequence[Record]]
    buckets: Mapping[str, Mapping[str, bytes]]

    @property
    def journal(self) -> Sequence[Record]:
        return self.streams[journal_stream(self.run)]

    @classmethod
    def load(cls, name: str) -> Recording:
        """Runs have the name of their recording."""
        unpacked = msgpack.unpackb(lzma.decompress((FOLDER / name / JOURNAL_FILE).read_bytes()))
        streams = {
            stream: [Record(subject, payload, headers, seq, time) for seq, time, subject, headers, payload in records]
            for stream, records in unpacked["streams"].items()
        }
        return cls(name, streams, unpacked["buckets"])

    def save(self) -> None:
        streams = {
            stream: [[each.seq, each.time, each.subject, dict(each.headers), each.payload] for each in records]
            for stream, records in self.streams.items()
        }
        packed = msgpack.packb({"streams": streams, "buckets": self.buckets})
        (FOLDER / self.run / JOURNAL_FILE).write_bytes(lzma.compress(packed, preset=_COMPRESSION))

    async def events(self, store: Store) -> list[tuple[Record, Event]]:
        """The journal's, each with its record; what nobody can read is left out, as every reader does."""
        journal, opened = Journal(MemoryBus(), store), []
        for record in self.journal:
            try:
                opened.append((record, await journal.open(record)))
            except MalformedMessage:
                continue
        return opened

    async def server(self, config: RunConfig) -> MemoryServer:
        """Streams with their records, queues filled from them, consumers as the scheduler makes them, and buckets."""
        server, fleet = MemoryServer(), config.fleet
        for spec in (*control_streams(), *run_streams(self.run, max_bytes=fleet.journal_bytes)):
            server.ensure_stream(spec)
            if spec.name in self.streams:  # before the queue over it is made, which begins with what is there
                server.log(spec.name).load(self.streams[spec.name])
        for consumer in run_consumers(
            self.run, envs=config.envs, shards=fleet.shards, tags=config.work_tags, buckets=fleet.buckets
        ):
            server.ensure_consumer(consumer)
        for bucket, values in self.buckets.items():
            keys = await MemoryBus(server).kv(bucket)
            for key, value in values.items():
                await keys.put(key, value)
        return server


def config_of(events: Sequence[tuple[Record, Event]]) -> RunConfig:
    """What the run is, as its first event says."""
    return parse_run_config(events[0][1].document, source="recording")


def facts_of(name: str) -> dict[str, Any]:
    """What was found out when it was recorded."""
    facts: dict[str, Any] = json.loads((FOLDER / name / FACTS_FILE).read_text())
    return facts


def unpack_store(name: str, folder: Path) -> Store:
    """The run's store, below ``folder``."""
    unpack(FOLDER / name / STORE_FILE, folder / "store" / name)
    return Store(f"file://{folder}/store")


def unpack_model(cache: Path) -> Path:
    """A model cache with the runs' base model."""
    return unpack(MODEL_FILE, cache)


def pack(folder: Path, archive: Path) -> None:
    """All files below a folder, without owners and times, so that the same files are the same archive."""
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            info = tar.gettarinfo(path, str(path.relative_to(folder)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            info.mode = 0o755 if path.is_dir() else 0o644
            tar.addfile(info, BytesIO(path.read_bytes()) if path.is_file() else None)
    archive.write_bytes(lzma.compress(packed.getvalue(), preset=_COMPRESSION))


def unpack(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive, mode="r:xz") as tar:
        tar.extractall(folder, filter="data")
    return folder
