"""Where a run lives on this machine: its folder, and the server that holds its journal, running or not."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ..bus.server import EmbeddedServer
from ..client import Client
from ..errors import ConfigError

RUNS = Path("runs")
ADDRESS_FILE = "up.json"


@dataclass(frozen=True)
class Address:
    """What anybody on this machine needs to reach a running ``up``."""

    nats_url: str
    store_url: str
    pid: int


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
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / ADDRESS_FILE).write_text(json.dumps(asdict(address)))

    def retire(self) -> None:
        """Keep the addresses, without a living process: the store may be elsewhere."""
        address = self.address()
        if address is not None:
            self.announce(Address(address.nats_url, address.store_url, 0))

    def address(self) -> Address | None:
        file = self.path / ADDRESS_FILE
        return Address(**json.loads(file.read_text())) if file.is_file() else None

    def living_address(self) -> Address | None:
        """The address of an ``up`` that is there now, or None."""
        address = self.address()
        return address if address is not None and address.pid and _alive(address.pid) else None


@asynccontextmanager
async def reach(run: str, nats_url: str | None, store_url: str | None) -> AsyncIterator[Client]:
    """A client for a run: by URL, through its living ``up``, or by starting its server for a moment."""
    folder = Folder(RUNS / run)
    if nats_url is not None:
        async with Client.open(nats_url, store_url or "memory://") as client:
            yield client
        return
    living = folder.living_address()
    if living is not None:
        async with Client.open(living.nats_url, living.store_url) as client:
            yield client
        return
    if not folder.server.is_dir():
        raise ConfigError(
            f"run {run!r}: there is no folder {folder.path} here and no --nats URL was given; "
            f"runs here: {', '.join(known()) or 'none'}"
        )
    server = EmbeddedServer(folder.server).start()
    try:
        address = folder.address()
        async with Client.open(server.url, store_url or (address.store_url if address else folder.store_url)) as client:
            yield client
    finally:
        server.stop()


def any_address(nats_url: str | None) -> str:
    """The server to talk to: the one given, or that of the one living ``up`` on this machine."""
    if nats_url is not None:
        return nats_url
    living = [a for name in known() if (a := Folder(RUNS / name).living_address())]
    if len(living) != 1:
        raise ConfigError(f"{len(living)} servers of `seamlessflow up` or `train` are running here; say which with --nats URL")
    return living[0].nats_url


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
