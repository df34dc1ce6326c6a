"""Where a run lives on this machine: its folder, and the server that holds its journal, running or not."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from seamlessflow.bus.nats_server import EmbeddedServer
from seamlessflow.client import Client
from seamlessflow.errors import ConfigError
from seamlessflow.redaction import write_private

RUNS = Path("runs")
ADDRESS_FILE = "up.json"
LOCK_SECONDS = 10.0
"""Another command that looks at the same stopped run is waited for."""


@dataclass(frozen=True)
class Address:
    """What anybody on this machine needs to reach a server and the store that belongs to it."""

    nats_url: str
    """May hold a password."""
    store_url: str | None
    """None: nobody said it."""
    pid: int = 0
    """The process that keeps the server here; 0: none now."""
    elsewhere: bool = False
    """Whether the server is not ours and is there whatever happens here (``train --nats``)."""


@dataclass(frozen=True)
class Folder:
    """A run folder and what is where in it."""

    path: Path

    @property
    def server(self) -> Path:
        return self.path / "nats"

    @property
    def store_url(self) -> str:
        return f"file://{(self.path / 'store').resolve()}"

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def announce(self, address: Address) -> None:
        """Leave the address for others of the same user."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_private(self.path / ADDRESS_FILE, json.dumps(asdict(address)))

    def retire(self) -> None:
        """Keep the addresses, without a living process: the store may be elsewhere."""
        address = self.address()
        if address is not None:
            self.announce(replace(address, pid=0))

    def address(self) -> Address | None:
        file = self.path / ADDRESS_FILE
        return Address(**json.loads(file.read_text())) if file.is_file() else None

    def living_address(self) -> Address | None:
        """The address of a server that is there now, as far as one can tell from here, or None."""
        address = self.address()
        return address if address is not None and (address.elsewhere or (address.pid and _alive(address.pid))) else None


def given_address(nats: str, store: str | None) -> Address:
    """What ``--nats`` and ``--store`` name. Raises ConfigError. Instead of a URL, the folder of a running ``up`` will do."""
    if "://" in nats or not Path(nats).is_dir():
        return Address(nats, store, elsewhere=True)
    living = Folder(Path(nats)).living_address()
    if living is None:
        raise ConfigError(f"--nats {nats}: no `seamlessflow up` is running in this folder; start one, or give a URL")
    return Address(living.nats_url, store or living.store_url, elsewhere=True)


def address_of(run: str, nats: str | None, store: str | None) -> Address | None:
    """Where a run's server is now: as given, else as its folder says; None: its server has to be started."""
    known_address = Folder(RUNS / run).address()
    kept = None if known_address is None else known_address.store_url
    if nats is not None:
        given = given_address(nats, store)
        return given if given.store_url else replace(given, store_url=kept)
    living = Folder(RUNS / run).living_address()
    return living if living is None or store is None else replace(living, store_url=store)


@asynccontextmanager
async def reach(run: str, nats_url: str | None, store_url: str | None) -> AsyncIterator[Client]:
    """A client for a run: by URL, through its living ``up``, or by starting its server for a moment."""
    address = address_of(run, nats_url, store_url)
    if address is not None:
        async with Client.open(address.nats_url, address.store_url) as client:
            yield client
        return
    with stopped_run(run, store_url) as own:
        async with Client.open(own.nats_url, own.store_url) as client:
            yield client


@contextmanager
def stopped_run(run: str, store_url: str | None) -> Iterator[Address]:
    """The server of a run that is not running now, started for a moment. Raises ConfigError when there is none here, or when
    somebody else has it and keeps it."""
    folder = Folder(RUNS / run)
    if not folder.server.is_dir():
        raise ConfigError(
            f"run {run!r}: there is no folder {folder.path} here and no --nats URL was given; "
            f"runs here: {', '.join(known()) or 'none'}"
        )
    address = folder.address()
    kept = (address.store_url if address else None) or folder.store_url
    server = EmbeddedServer(folder.server).start(lock_seconds=LOCK_SECONDS)
    try:
        yield Address(server.url, store_url or kept)
    finally:
        server.stop()


def any_address(nats_url: str | None) -> str:
    """The server to talk to: the one given, or that of the one living ``up`` on this machine."""
    if nats_url is not None:
        return given_address(nats_url, None).nats_url
    addresses = [Folder(RUNS / name).living_address() for name in known()]
    living = {a.nats_url for a in addresses if a is not None and not a.elsewhere}  # others may be long gone
    if len(living) != 1:
        raise ConfigError(f"{len(living)} servers of `seamlessflow up` or `train` are running here; say which with --nats URL")
    return living.pop()


def known() -> list[str]:
    """Run folders here."""
    return sorted(p.parent.name for p in RUNS.glob(f"*/{ADDRESS_FILE}")) if RUNS.is_dir() else []


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
