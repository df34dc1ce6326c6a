"""Each client's episodes are run once and side by side, since most of their time is waiting; tests look at what they left."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from seamlessflow.bus.nats_server import EmbeddedServer
from tests.clients import environments
from tests.clients.data_plane import DataPlane, Outcome
from tests.clients.roster import CLIENTS, Client

NUM_STARTING = 3
"""Programs that start at the same time: starting is what costs a processor."""
Outcomes = dict[str, Outcome | BaseException]
"""By run: what an episode left, or what came in its way."""
WIRE = environments.FOLDER / "wire"
"""What went over the wire in the last run of each episode, for people."""


@dataclass(frozen=True)
class Case:
    """One episode of one client."""

    client: Client
    pause_seconds: float

    @property
    def run(self) -> str:
        return f"{self.client.name}-{self.pause_seconds:g}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long-pauses", action="store_true", help="stand still for 30 s as well")
    parser.addoption("--pause", type=float, action="append", metavar="SECONDS", help="stand still so long, not for 0 and 5 s")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        usual = (0.0, 5.0, 30.0) if metafunc.config.getoption("--long-pauses", default=False) else (0.0, 5.0)
        pauses = metafunc.config.getoption("--pause", default=None) or usual
        clients = [client for client in CLIENTS if client.stops or "stops" not in metafunc.fixturenames]
        cases = [Case(client, pause) for client, pause in itertools.product(clients, pauses)]
        metafunc.parametrize("case", cases, ids=lambda case: case.run)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Both markers, so that ``-m "not slow"`` passes them over, as every run but ./task test:clients should."""
    for item in items:
        if environments.HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def episodes(request: pytest.FixtureRequest, nats_binary: str, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The episodes of all selected tests."""
    selected = (item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec"))
    cases = {case.run: case for case in selected if case is not None and environments.is_made(case.client.environment)}
    folder = tmp_path_factory.mktemp("clients")
    server = EmbeddedServer(folder / "nats").start()
    try:
        return asyncio.run(_all_of(list(cases.values()), server.url, folder))
    finally:
        server.kill()


@pytest.fixture
def stops(case: Case) -> tuple[str, ...]:
    """Of clients that send some."""
    return case.client.stops


@pytest.fixture
def episode(case: Case, episodes: Outcomes) -> Outcome:
    if case.run not in episodes:
        makes = "test:clients:npm" if case.client.environment == environments.NPM else "test:clients"
        pytest.skip(f"runs/clients/{case.client.environment} is not made from its pins: ./task {makes} makes it")
    outcome = episodes[case.run]
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


async def _all_of(cases: list[Case], server_url: str, folder: Path) -> Outcomes:
    starting = asyncio.Semaphore(NUM_STARTING)
    outcomes = await asyncio.gather(
        *(_episode(case, server_url, folder / case.run, starting) for case in cases), return_exceptions=True
    )
    return {case.run: outcome for case, outcome in zip(cases, outcomes, strict=True)}


async def _episode(case: Case, server_url: str, folder: Path, starting: asyncio.Semaphore) -> Outcome:
    async with starting:
        plane = DataPlane(case.client, case.run, server_url, folder)
        running = asyncio.create_task(plane.episode(case.pause_seconds))
        asked = asyncio.create_task(plane.until_asked())
        await asyncio.wait((running, asked), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
    try:
        return await running
    finally:
        WIRE.mkdir(parents=True, exist_ok=True)
        (WIRE / f"{case.run}.txt").write_text(plane.tap.transcript())
