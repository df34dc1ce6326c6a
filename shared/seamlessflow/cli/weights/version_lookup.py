"""What a command about a run's weights works on: the store, and what the run's server knows, where there is one."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from seamlessflow.cli.run_location import RUNS, Folder, address_of, reach
from seamlessflow.cli.submit import require_run
from seamlessflow.client import CONNECT_SECONDS, Client, NoStore
from seamlessflow.codec import decode
from seamlessflow.contracts import WeightsHead, WeightsPublished
from seamlessflow.contracts.streams import journal_stream
from seamlessflow.contracts.subjects import subject_filter
from seamlessflow.errors import ConfigError, Unavailable
from seamlessflow.redaction import without_password
from seamlessflow.store.large_payloads import Store
from seamlessflow.weights.inventory import Listed, choose, inventory
from seamlessflow.weights.reader_leases import Reader, Readings, read_head, read_readings
from seamlessflow.weights.retention import Collection

T = TypeVar("T")
NOBODY = Readings((), ())


@dataclass(frozen=True)
class Found:
    """A run's weights, looked at once: first the head, then the leases, then the store, in this order (``weights.keeping``)."""

    run: str
    store: Store
    collection: Collection
    client: Client | None
    """None: the store is all that was named."""
    head: WeightsHead | None = None
    readings: Readings = NOBODY
    published: dict[int, str] = field(default_factory=dict)
    """Folders that the journal names, by version."""
    is_over: bool = False
    """Whether the run ended: nobody writes weights any more."""
    listed: list[Listed] = field(default_factory=list)

    @property
    def newest(self) -> int | None:
        """The head, or without a server the highest complete version. None: there is none."""
        if self.head is not None:
            return self.head.weights_version
        return max((each.weights_version for each in self.listed if each.manifest is not None), default=None)

    def choose(self, version: int | None) -> Listed:
        """The folder of a version; None: of the newest. Raises ConfigError."""
        return choose(self.listed, self.published, version, head=None if self.head is None else self.head.weights_version)

    @asynccontextmanager
    async def leased(self, listed: Listed) -> AsyncIterator[None]:
        """Nobody removes it meanwhile, where there is a server to say that to."""
        if self.client is None:
            yield
            return
        name = f"seamlessflow on {socket.gethostname()} ({os.getpid()})"
        async with Reader(self.client.bus, self.run, name).lease_one(listed.weights_version, listed.path):
            yield


@asynccontextmanager
async def find(run: str, nats: str | None, store: str | None) -> AsyncIterator[Found]:
    """Raises ConfigError, Unavailable."""
    named = None if store is None else store_at(store)
    if named is not None and not await has_server(run, nats, store):
        yield await _look(run, named, None)
        return
    async with reach(run, nats, store) as client:
        await require_run(client, run)
        if isinstance(client.store, NoStore):
            raise ConfigError("weights are in the run's store: give --store URL, the one the services use")
        yield await _look(run, client.store, client)


def store_at(url: str) -> Store:
    """Raises ConfigError for a URL that names no store."""
    try:
        return Store(url)
    except (ValueError, ImportError) as wrong:  # no such protocol, or its package is not installed
        raise ConfigError(f"store {without_password(url)}: {wrong}") from wrong


async def has_server(run: str, nats: str | None, store: str | None) -> bool:
    """Whether there is a server to ask, which nobody insists on who named a store and no server."""
    address = address_of(run, nats, store)
    if nats is not None or store is None:
        return True
    if address is None:
        return Folder(RUNS / run).server.is_dir()
    try:
        async with Client.open(address.nats_url, patience_seconds=CONNECT_SECONDS):
            return True
    except Unavailable as wrong:
        print(f"seamlessflow: {wrong} Going by the store alone.", file=sys.stderr)
        return False


async def look_again(found: Found) -> Found:
    """What there is now."""
    return await _look(found.run, found.store, found.client)


async def _look(run: str, store: Store, client: Client | None) -> Found:
    collection = Collection(store, run)
    if client is None:
        listed = await beside(lambda: inventory(collection))
        if not listed:
            raise ConfigError(f"there are no weights of run {run!r} in {without_password(store.url)}")
        return Found(run, store, collection, None, listed=listed)
    head = await read_head(client.bus, run)
    readings = await read_readings(client.bus, run)
    is_over = (await client.commits(run)).ended is not None
    published = await _published(client, run)
    listed = await beside(lambda: inventory(collection))
    return Found(run, store, collection, client, head, readings, published, is_over, listed)


async def _published(client: Client, run: str) -> dict[int, str]:
    found: dict[int, str] = {}
    async for record in client.bus.read(journal_stream(run), filters=(subject_filter(WeightsPublished, run=run),)):
        event = decode(record.subject, record.payload, record.headers)
        if isinstance(event, WeightsPublished):
            found.setdefault(event.weights_version, event.path)
    return found


async def beside(work: Callable[[], T]) -> T:
    """Blocking work in a thread that Ctrl-C does not wait for."""
    loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def end(result: T | None, failure: BaseException | None) -> None:
        if done.done():
            return
        if failure is not None:
            done.set_exception(failure)
        else:
            done.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as wrong:
            failure = wrong
        if not loop.is_closed():
            loop.call_soon_threadsafe(end, result, failure)

    threading.Thread(target=run, daemon=True).start()
    return await done  # type: ignore[no-any-return]
